"""LeRobot: its datasets on disk, of versions 2.1 and 3."""
