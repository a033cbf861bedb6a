"""The ground of all rooms: names, numbers, text, settings, progress, the file system, HTTP."""
