"""A dataset as one HTML page, in a file that needs no network: distributions, findings, episodes, a viewer.

::

    content.gather     what a page shows: checks, histograms of a sample, some episodes
    document.render    that as HTML with inline SVG, one style sheet and one script (static/)
    writing.write_page the file, whole or not at all
"""

from rlds_cli.report.html.writing import PageReport as PageReport
from rlds_cli.report.html.writing import write_page as write_page

__all__ = ["PageReport", "write_page"]
