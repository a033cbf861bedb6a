"""How records look to people: one module per record, each a rich renderable that fits the width it is given."""
