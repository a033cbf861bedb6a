"""Growing datasets: rows and logs on disk, versions of them, and what is kept."""
