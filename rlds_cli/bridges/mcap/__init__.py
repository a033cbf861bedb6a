"""MCAP: recordings that ROS 2 and Foxglove play, a file for each episode."""

FORMATS = {"mcap": "Mcap"}
