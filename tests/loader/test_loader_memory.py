import os

import pytest

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader.storage.memory import budget, cgroup_limit


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("1.5 gib", 3 << 29),
        ("500MB", 500_000_000),
        ("500M", 500_000_000),
        ("2 KiB", 2048),
        ("17", 17),
        ("17B", 17),
        (0, 0),
        (123, 123),
    ],
)
def test_sizes(text, size):
    assert budget(text) == (size, "memory=")


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", ["much", "-1GiB", "8 gigs", "", -1, True, "device"])
def test_what_is_not_a_size(wrong):
    with pytest.raises(InvalidArgument, match="not a size"):
        budget(wrong)


def cgroup(tmp_path, line, limits):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line)
    for path, text in limits.items():
        file = tmp_path / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return tmp_path


def test_the_lowest_limit_on_the_way_up_counts(tmp_path):
    root = cgroup(tmp_path, "0::/job/step\n", {"job/step/memory.max": "max", "job/memory.max": 4 << 30})
    assert cgroup_limit(root) == 4 << 30
    assert budget(None, root) == (1 << 30, "a quarter of the cgroup's limit")


def test_the_first_version_of_cgroups(tmp_path):
    line = "5:cpu:/a\n4:memory:/docker/x\n"
    root = cgroup(
        tmp_path,
        line,
        {"memory/docker/x/memory.limit_in_bytes": 2 << 30, "memory/memory.limit_in_bytes": 9223372036854771712},
    )
    assert cgroup_limit(root) == 2 << 30


def test_inside_a_container_the_root_has_the_limit(tmp_path):
    root = cgroup(tmp_path, "0::/\n", {"memory.max": 1 << 30})
    assert cgroup_limit(root) == 1 << 30


def test_without_a_limit_the_machine_counts(tmp_path):
    assert cgroup_limit(tmp_path) is None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert budget(None, tmp_path) == (total // 4, "a quarter of the machine's memory")
