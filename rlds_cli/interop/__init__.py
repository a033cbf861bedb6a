"""Other libraries' ways of handing out data, for scripts that were written for them."""
