"""What a list shows of a profile: worked out from its files once for what they say now, and once when it is started."""

from __future__ import annotations

from kvtop.profiles.cards import taken
from kvtop.profiles.differences import fingerprint
from kvtop.profiles.launch import VISIBLE, Launch, asked, environment, place_is_told
from kvtop.profiles.profile import Profile
from kvtop.profiles.running.record import Setup
from kvtop.sources.tier_size import tier_bytes


def setup(profile: Profile, run: Launch) -> Setup:
    """Reads the file of --config, where there is one."""
    flags = asked(run.serve, run.cwd)
    size = tier_bytes(flags.value("kv-offloading-size"), flags.value("kv-transfer-config"))
    return Setup(
        tuple(
            taken(profile.runner, profile.gpus, environment(profile).get(VISIBLE, ""), flags.value("device-ids") or "")
        ),
        None if size is None else size * flags.engines(),
        place_is_told(profile, flags),
        fingerprint(profile),
    )
