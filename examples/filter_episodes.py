"""Keep the good episodes: a function that returns None drops the episode.

rlds preprocess sample/pendulum-d4rl --fn examples/filter_episodes.py:good_episodes
rlds preprocess sample/cartpole-minari --fn examples/filter_episodes.py:good_episodes --arg at_least=400 --name good
"""


def good_episodes(episode, at_least=-200.0):
    """The episode when its return is high enough, else None."""
    return episode if episode["next"]["reward"].sum() >= at_least else None
