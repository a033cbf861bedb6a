"""Decisions of people on episodes: made while they look, kept in the home, applied to a dataset in one transaction.

A `Decision` names an episode by its id and steps of it by their numbers in it, never an episode by a number. It says
who made it, when, and which version was looked at.

A `DecisionJournal` (``ds.decisions()``) keeps decisions on a dataset in the home as they are made::

    journal = ds.decisions(home=...)
    revision = journal.add([{"id": "0f3a...", "do": "drop", "by": "ann", "version": 3}])   # on the disk when it returns
    journal.undo([decision.key], by="ann")                                                 # a record, too
    journal.read(since=revision)         # Entries: what others have added and undone, and the next revision
    journal.made()                       # all decisions that were not undone, in order
    journal.pending()                    # those of them that the open version does not have

`Dataset.plan` compares decisions with a version and says what clashes, `Dataset.apply` makes the next version.
"""
