"""How rows are read: mapped files, packed rows, memory, the page cache."""
