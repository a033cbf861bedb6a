"""MCAP: recordings that ROS 2 and Foxglove play, a file for each episode.

`write` writes them; the family `recordings` reads them.
"""
