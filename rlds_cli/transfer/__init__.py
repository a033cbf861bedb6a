"""Bytes on their way here: what a source lists, what is needed, how it comes, and that it came whole.

::

    urls, --from ──► sources.list_files ──► RemoteFile... ──► planning.plan ──► Plan ──► fetching.fetch ──► files
                     (hub, mirrors, local)                    (reads, decides)           (acts)

    <destination>/<file>               whole and checked: it appears by a rename
    <destination>/<file>.json          url, revision, size, etag, sha256, fetched_at
    <destination>/<file>.part[.json]   on its way; a later process goes on from it
    <destination>/.listing.json        what the source listed, once all of it is here

Nothing here knows what the bytes mean.
"""
