"""LeRobot: its datasets on disk, of versions 2.1 and 3."""

FORMATS = {"lerobot": "LeRobot3", "lerobot2.1": "LeRobot21"}
