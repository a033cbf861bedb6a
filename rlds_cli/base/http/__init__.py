"""HTTP requests with deadlines, retries, limits on size, and credentials that go to one host only."""
