"""Pages of reports as rich renderables that fit the width of the terminal; imported when they are drawn."""
