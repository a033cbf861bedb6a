"""Pages as rich renderables that fit the terminal, and files that ``rlds inspect`` writes; imported when needed."""
