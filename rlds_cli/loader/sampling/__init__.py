"""What samples: order, samplers, and the index maths behind them."""
