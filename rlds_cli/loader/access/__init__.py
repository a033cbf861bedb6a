"""How rows are read: maps, packed rows, memory, what is told to the kernel."""
