"""Datasets on order: what is here, what it takes to have the others, and having them.

::

    orders ──► deliveries: decides ──► making: lists, fetches, converts
                                  └──► staging: copies a published dataset
"""
