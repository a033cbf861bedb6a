"""URLs of the files of archives: a class for each kind of place, and the files that a URL names there."""
