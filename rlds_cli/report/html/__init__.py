"""A report on a dataset as one HTML file without network access: distributions, findings, episodes, a viewer.

::

    content.gather      the content of the page: checks, histograms of a sample, some episodes
    writing.render      the content as HTML with inline SVG, one style sheet and one script (static/)
    writing.write_page  the file, written completely or not at all
"""

from rlds_cli.report.html.writing import PageReport as PageReport
from rlds_cli.report.html.writing import write_page as write_page

__all__ = ["PageReport", "write_page"]
