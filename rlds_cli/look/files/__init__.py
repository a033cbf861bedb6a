"""The files that a user names, without what rlds has made among them."""
