"""The reading of rows: mapped files, packed rows, memory limits, the page cache, memory of a device."""
