"""The format of a dataset with NumPy alone: any episode, and the fingerprint from the rows. See format.md.

python docs/reference/read_with_numpy.py ~/.cache/rlds/datasets/d4rl/hopper-medium-v2       ordinary or growing
python docs/reference/read_with_numpy.py ~/.cache/rlds/datasets/local/run7#v3               a version, by number or tag
"""

import hashlib
import json
import struct
import sys
import zlib
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np

COMMIT = struct.Struct("<8s21qd32s4xI")  # a record of commits.log, and what its first numbers are
COUNTS = ("number", "rows", "episodes", "departed", "about", "sources", "strings", "videos", "edits")
COUNTS += ("first_row", "first_episode")
VIDEO = np.dtype([("field", "<i8"), ("span", "<i8", (2,)), ("sha256", "u1", (32,))])  # a record of videos.log
EPISODE = np.dtype(  # a record of episodes.log
    [
        *((name, "<i8") for name in ("start", "length", "num_observed", "num_transitions", "row")),
        *(("seed", "<u8"), ("total_reward", "<f8"), ("num_done", "<i8"), ("num_terminated", "<i8")),
        *(("about", "<i8"), ("about_bytes", "<i4"), ("source", "<i4")),
        *(("end", "u1"), ("has_seed", "?"), ("protected", "?"), ("open", "?"), ("born", "<u4")),
        ("id", "u1", (16,)),
    ]
)
COLUMNS = ("length", "end", "num_observed", "seed", "has_seed", "options")  # TED's that the fingerprint covers
HEAD = ("name", "dtype", "shape", "placement", "kind", "codec")


# -- versions, arrays, texts


def earlier(dataset, number):
    """The directory of an earlier version of an ordinary dataset."""
    return dataset.parent.parent.parent / "versions" / dataset.parent.name / dataset.name / str(number)


def version(ref):
    """The directory of PATH, PATH#v3 or PATH#TAG, and the number of the version of a growing dataset, None: newest."""
    place, mark, name = str(ref).rpartition("#")
    if not mark or Path(ref).exists():
        return Path(ref), None
    path, tags = Path(place), Path(place) / "tags.json"
    number = int(name[1:]) if name[:1] == "v" and name[1:].isdecimal() else json.loads(tags.read_text())[name]
    if (path / "commits.log").exists():
        return path, number
    newest = json.loads((path / "zarr.json").read_text())["attributes"]["rlds"]["version"]
    return path if number == newest else earlier(path, number), None


def place(path):
    """The directory of an array: this one, or one of another dataset, which moves when that gets a newer version."""
    if not (path / "reference.json").exists():
        return path
    to = json.loads((path / "reference.json").read_text())
    was = Path(to["dataset"])
    tops = [p.parent for p in path.absolute().parents if p.name in ("datasets", "versions")]  # of a home that moved
    there = [was, *(top / "datasets" / was.parent.name / was.name for top in tops)]
    places = [*there, *(earlier(dataset, to["version"]) for dataset in there)]
    known = {hashlib.sha256((d / "zarr.json").read_bytes()).hexdigest(): d for d in places if d.exists()}
    return known[to["version_id"]] / to["array"]


@cache
def about(path):
    """The dtype and shape of an array, and the rows of one of its files; 0 where these are compressed."""
    found = json.loads((place(path) / "zarr.json").read_text())
    chunk, inner = found["chunk_grid"]["configuration"]["chunk_shape"], found["codecs"][0].get("configuration", {})
    plain = [codec["name"] for codec in inner.get("codecs", ())] == ["bytes"]
    return np.dtype(found["data_type"]).newbyteorder("<"), tuple(found["shape"]), chunk[0] if plain else 0


def array(path, a=0, b=None):
    """Rows a to b of an array. File k begins with rows k * n, k * n + 1, ..., little-endian, in C order."""
    if (path / "lookup.json").exists():
        return looked_up(path, lambda part, rows: array(part)[rows])[a:b]
    path = place(path)
    segments = json.loads((path / "zarr.json").read_text())["attributes"].get("rlds_segments")
    if segments:
        return in_segments(path, segments, a, b)
    dtype, (count, *shape), n = about(path)
    b = count if b is None else b
    if a == b or 0 in shape:
        return np.zeros((b - a, *shape), dtype)
    if not n:
        import zarr  # reads what is compressed

        return zarr.open_array(path, mode="r")[a:b]
    parts = []
    for k in range(a // n, (b - 1) // n + 1):
        file = path.joinpath("c", str(k), *["0"] * len(shape))
        parts.append(np.memmap(file, dtype, "r", shape=(n, *shape))[max(0, a - k * n) : b - k * n])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def in_segments(path, segments, a, b):
    """Rows a to b of an array in segments, each an array of its own; rows between them are those of no episode."""
    count, *shape = segments["shape"]
    b = count if b is None else b
    rows = np.zeros((b - a, *shape), np.dtype(segments["data_type"]).newbyteorder("<"))
    for k, (start, n) in enumerate(segments["segments"]):
        first, stop = max(a, start), min(b, start + n)
        if first < stop:
            rows[first - a : stop - a] = array(path / str(k), first - start, stop - start)
    return rows


def looked_up(path, take):
    """The rows of a lookup: some of those of its parts, each of which has numbers from a multiple of 65,536 on."""
    to, start = json.loads((path / "lookup.json").read_text()), 0
    dataset = path.parents[len(Path(to["array"]).parts) - 1]
    index = array(dataset / "__lookups" / to["index"])
    rows = np.zeros((len(index), *to["row"]), to["data_type"] or object)
    for k, (kind, count, *record) in enumerate(to["parts"]):
        at = (index >= start) & (index < start + count)
        if kind == "stored" and at.any():
            rows[at] = take(path / str(k), index[at] - start)
        elif kind == "records" and at.any():
            first, width, log = record
            file = place(dataset / "__lookups" / log) / "c" / "0" / "0"
            records = np.memmap(file, np.uint8, "r", shape=(count, width))
            size = rows[:1].nbytes
            part = np.ascontiguousarray(records[index[at] - start, first : first + size])
            rows[at] = part.view(rows.dtype.newbyteorder("<")).reshape(-1, *to["row"])
        elif kind == "numbers":
            rows[at] = index[at] - start
        start = -(-(start + count) // 65536) * 65536
    return rows


def ragged(path, a=0, b=None):
    """Encoded frames or texts a to b: offsets say where the bytes of each are."""
    if len(about(path / "offsets")[1]) == 2:  # frames: the first byte of each row, and the one behind
        return [array(path / "bytes", x, y).tobytes() for x, y in array(path / "offsets", a, b).tolist()]
    offsets = array(path / "offsets", a, None if b is None else b + 1).tolist()
    data = array(path / "bytes", offsets[0], offsets[-1]).tobytes()
    return [data[x - offsets[0] : y - offsets[0]] for x, y in pairwise(offsets)]


def texts(path):
    """The texts of an array of texts."""
    if (path / "lookup.json").exists():
        return list(looked_up(path, lambda part, rows: np.array(texts(part), object)[rows]))
    return [text.decode("utf-8", "surrogateescape") for text in ragged(path)]


# -- the episode table: the first rows, and the columns that may count as name -> values, episodes without one


def ordinary_table(dataset, manifest):
    """The episode table of an ordinary dataset, from the arrays in ``episodes/``."""
    table, none = dataset / "episodes", np.zeros(manifest["counts"]["episodes"], bool)
    own, columns = manifest.get("episode_columns", {}), {}
    small = json.loads((table / "zarr.json").read_text())["attributes"].get("rlds_columns", {})  # the user's
    there = {unquote(str(path.relative_to(table))): path for path in (*table.glob("*/"), *table.glob("split/*/"))}
    for name in (*COLUMNS, *(n for n in there if n.startswith("split/")), *own):
        path = there.get(name, table / name)
        if name in small:
            columns[name] = own_column(small[name], own[name]["dtype"])
            continue
        mask = table / "missing" / path.name
        missing = array(mask) if name in own and mask.exists() else none
        if (path / "bytes").exists() or (path / "0" / "bytes").exists():  # the second of a lookup
            values = texts(path)
            missing = np.array([not v for v in values], bool) if name == "options" else missing
            columns[name] = [None if no else v for v, no in zip(values, missing, strict=True)], missing
        elif path.exists():
            columns[name] = array(path), missing
    return array(table / "start"), columns


def commit(dataset, wanted=None):
    """The newest whole record of the log, or another one: a commit that was killed may have left half a record."""
    data, size, freed = (dataset / "commits.log").read_bytes(), COMMIT.size, np.fromfile(dataset / "freed", "<i8")
    for number in range(len(data) // size - 1, -1, -1) if wanted is None else [wanted]:
        record = data[number * size : (number + 1) * size]
        _, *values, crc = COMMIT.unpack(record if len(record) == size else bytes(size))
        if crc == zlib.crc32(record[:-4]) and values[0] == number:
            if freed[0] > values[3]:
                raise SystemExit(f"{dataset}: rows of version {number} were freed")
            return dict(zip(COUNTS, values, strict=False))
    raise SystemExit(f"{dataset} has no version {wanted}" if wanted is not None else f"{dataset} has no commit")


def growing_table(dataset, g, frames):
    """The episode table of a growing dataset, from the records and texts of the episodes that are kept, and edits."""
    record = np.dtype([*EPISODE.descr, ("frames", "<i8", (frames, 2))])
    e = np.fromfile(dataset / "episodes.log", record, g["episodes"])
    stays = np.arange(len(e)) >= g["first_episode"]
    log = (dataset / "about.log").read_bytes()
    known = [json.loads(log[a : a + n] or "{}") for a, n in zip(e["about"], e["about_bytes"], strict=True)]
    apply_edits(dataset, g, stays, known)
    stays[np.fromfile(dataset / "departed.log", "<i8", g["departed"])] = False
    e, known = e[stays], [k for k, kept in zip(known, stays, strict=True) if kept]
    none = np.zeros(len(e), bool)
    names = COLUMNS[:5] if e["has_seed"].any() else COLUMNS[:3]
    columns = {name: (e[name], none) for name in names}
    if any(k.get("options") for k in known):
        columns["options"] = [k.get("options") or None for k in known], none
    for name in {name for k in known for name in k.get("splits", ())}:
        columns[f"split/{name}"] = np.array([name in k.get("splits", ()) for k in known]), none
    for name in {name for k in known for name, value in k.get("extra", {}).items() if value is not None}:
        columns[name] = own_column([k.get("extra", {}).get(name) for k in known])
    return e["start"], columns


def apply_edits(dataset, g, stays, known):
    """Apply the lines of the log of edits, in order: each drops or restores episodes, or sets columns of them."""
    for line in (dataset / "edits.log").read_bytes()[: g["edits"]].splitlines():
        edit = json.loads(line)
        numbers = [n for a, b in edit.get("episodes", ()) for n in range(a, b)]
        if "dropped" in edit:
            stays[numbers] = not edit["dropped"]
        for name, value in edit.get("columns", {}).items():
            for k, n in enumerate(numbers):
                known[n].setdefault("extra", {})[name] = value[k] if isinstance(value, list) else value


def own_column(values, dtype=None):
    """A user's column of one type: texts, bool, float64, int64, or uint64 where int64 is too small."""
    given, missing = [v for v in values if v is not None], np.array([v is None for v in values], bool)
    types = set(map(type, given))
    if dtype is None:
        dtype = "str" if types == {str} else "bool" if types == {bool} else "float64" if float in types else "int64"
        dtype = "uint64" if dtype == "int64" and max(given) >= 1 << 63 else dtype
    if dtype == "str":
        return values, missing
    empty = np.nan if dtype == "float64" else 0
    return np.array([empty if v is None else v for v in values], dtype), missing


# -- rows, episodes, the fingerprint


class Dataset:
    """A dataset: ``fields`` by name, ``start`` [episodes], and ``columns`` of the episode table that may count."""

    def __init__(self, ref):
        path, number = version(ref)
        manifest = json.loads((path / "zarr.json").read_text())["attributes"]["rlds"]
        self.path, self.fields = path, sorted(manifest["fields"], key=lambda f: f["name"])
        with_text = [f for f in self.fields if f["kind"] == "text"]
        if (path / "commits.log").exists():
            g, frames = commit(path, number), [f for f in self.fields if f["kind"] == "frames"]
            self.start, self.columns = growing_table(path, g, len(frames))
            films = np.fromfile(path / "videos.log", VIDEO, g["videos"])
            self.spans = {f["name"]: films["span"][films["field"] == k] for k, f in enumerate(frames)}
            lines = [json.loads(line) for line in (path / "strings.log").read_bytes()[: g["strings"]].splitlines()]
            self.texts = {f["name"]: [text for name, text in lines if name == f["name"]] for f in with_text}
        else:
            self.start, self.columns = ordinary_table(path, manifest)
            self.texts = {f["name"]: texts(path / "text" / f["path"]) for f in with_text}
            in_videos = [f for f in self.fields if f["codec"] == "mp4"]
            self.spans = {f["name"]: array(path / "video" / f["path"] / "spans") for f in in_videos}

    def rows(self, field, a, b):
        """Rows a to b of a field: an array, a list of the bytes of images, or a list of texts, None for none."""
        path = self.path / field["path"]
        if field["kind"] == "text":
            return [self.texts[field["name"]][code] if code >= 0 else None for code in array(path, a, b)]
        encoded = field["kind"] == "frames" and field["codec"] != "mp4"  # in videos: their number, and the frame's
        return ragged(path, a, b) if encoded else array(path, a, b)

    def video(self, field, n):
        """The MP4 file to which rows of a field refer by its number."""
        a, b = self.spans[field["name"]][n].tolist()
        return array(self.path / "video" / field["path"] / "bytes", a, b).tobytes()

    def episode(self, k):
        """T+1 rows of what is known at both ends of a step, T rows of what belongs to the step."""
        a, b = int(self.start[k]), int(self.start[k] + self.columns["length"][0][k])
        return {f["name"]: self.rows(f, a, b + (f["placement"] == "both")) for f in self.fields}

    def field_digest(self, field):
        """Hash of the hashes of a field's episodes: of T rows each, or of as many as there are observations."""
        count, _ = self.columns["num_observed" if field["placement"] == "both" else "length"]
        spans, videos = list(zip(self.start.tolist(), (self.start + count).tolist(), strict=True)), {-1: bytes(32)}
        if field["codec"] == "mp4":
            used = {n for a, b in spans for n in self.rows(field, a, b)[:, 0].tolist()}
            videos |= {n: sha256(self.video(field, n)) for n in used - {-1}}
        hashes = [episode_digest(field, self.rows(field, a, b), videos) for a, b in spans]
        return digest([field[key] for key in HEAD], b"".join(hashes))

    def fingerprint(self):
        """Hash of the digests of all fields by name, then of the columns by name; neither empty splits nor columns."""
        digests = [self.field_digest(f) for f in self.fields]
        for name, (values, missing) in sorted(self.columns.items()):
            empty = not values.any() if name.startswith("split/") else missing.all() and name not in COLUMNS
            digests += [] if empty else [column_digest(name, values, missing)]
        return "rlds1:" + sha256(b"".join(digests)).hex()


def sha256(values):
    """Hash of the raw bytes of an array, or of bytes."""
    return hashlib.sha256(values if isinstance(values, bytes) else np.ascontiguousarray(values)).digest()


def digest(head, content):
    """Hash of a field or a column: of a line that describes it, and of its content."""
    return sha256(json.dumps(head, separators=(",", ":")).encode() + b"\n" + content)


def texts_digest(values):
    """Hash of texts: their lengths in bytes, -1 for none, then their bytes."""
    encoded = [None if v is None else v.encode("utf-8", "surrogateescape") for v in values]
    lengths = np.array([-1 if v is None else len(v) for v in encoded], "<i8")
    return sha256(lengths.tobytes() + b"".join(v or b"" for v in encoded))


def episode_digest(field, values, videos):
    """Hash of one episode of a field: of its rows, or of the hashes of its rows where these are large or encoded."""
    if field["kind"] == "text":
        return texts_digest(values)
    if field["codec"] == "mp4":  # the hash of the video's file, and the number of the frame
        return sha256(b"".join(videos[int(n)] + k.tobytes() for n, k in values))
    if field["kind"] == "frames" or values[:1].nbytes >= 4096:
        return sha256(b"".join(map(sha256, values)))
    return sha256(values)


def column_digest(name, values, missing):
    """Hash of a column of the episode table; ``missing`` [episodes] says which episodes have no value."""
    if isinstance(values, list):
        return digest([name, "str", [], "episode", "text", None], texts_digest(values))
    content = values.tobytes() + (missing.tobytes() if missing.any() else b"")
    return digest([name, values.dtype.name, [], "episode", "array", None], content)


if __name__ == "__main__":
    ds = Dataset(sys.argv[1])
    for name, values in ds.episode(0).items():
        print(f"{name:30} {getattr(values, 'dtype', type(values[0]).__name__)!s:8} {np.shape(values)}")
    print(ds.fingerprint())
