"""What comes out: arrays of a framework, on a device, transformed."""
