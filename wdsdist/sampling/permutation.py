"""Pseudorandom permutations of ``range(n)``: random access to a shuffle that is never held in memory.

`permute` says which element stands at each of many positions, each with a key and an ``n`` of its own, and needs no
memory beyond its answer. It uses integer arithmetic modulo 2**64 only, so the answer is the same on every machine,
in every process and under every version of numpy.

Sources: J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), for Feistel networks with cycle
walking; G. Steele, D. Lea and C. Flood, "Fast Splittable Pseudorandom Number Generators" (2014), for the mixer.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from wdsdist._util.array_types import Int64s, Uint64s

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROUNDS = 8  # six already look random; two more cost little
_SMALL = 32  # up to here, ranks of hashes are affordable and exactly uniform; a Feistel network of 5 elements is not


def mix_key(*parts: int) -> int:
    """Hash integers, each taken modulo 2**64, into one 64-bit key.

    Seeds are mixed this way, never added: seed 5 in epoch 1 must differ from seed 6 in epoch 0.

    >>> mix_key(5, 1) == mix_key(6, 0)
    False
    """
    return int(mix_keys(0, *(np.uint64(int(part) & _MASK) for part in parts))[0])


def mix_keys(key: int, *parts: npt.ArrayLike) -> Uint64s:
    """Hash more integers, given as arrays, into a key that `mix_key` made.

    >>> mix_keys(mix_key(5, 1), [8, 9], 3).tolist() == [mix_key(5, 1, 8, 3), mix_key(5, 1, 9, 3)]
    True
    """
    state: Uint64s = np.full(1, key, np.uint64)
    for part in parts:
        state = _finalise((state + np.uint64(_GOLDEN)) ^ _finalise(np.atleast_1d(part).astype(np.uint64)))
    return state


def permute(positions: npt.ArrayLike, n: npt.ArrayLike, keys: npt.ArrayLike) -> Int64s:
    """Return, for each position, the element of ``range(n)`` that its key's permutation puts there.

    Args:
        positions: integers, each with ``0 <= position < n``.
        n: the sizes, one for all or one for each position; below 2**52.
        keys: 64-bit keys, one for all or one for each position.

    >>> sorted(permute(range(100), 100, mix_key(1)).tolist()) == list(range(100))
    True
    """
    position, size, key = np.broadcast_arrays(
        np.asarray(positions, np.int64), np.asarray(n, np.int64), np.asarray(keys, np.uint64)
    )
    small = size <= _SMALL
    if position.size and not small.any():
        is_one = size[0] <= min(8192, 4 * size.size) and bool((size == size[0]).all() and (key == key[0]).all())
        return _table(int(size[0]), int(key[0]))[position] if is_one else _feistel(position, size, key)
    out = np.empty(position.shape, np.int64)
    for part, method in ((small, _rank_of_hash), (~small, _feistel)):
        out[part] = method(position[part], size[part], key[part])
    return out


def shuffled(n: int, key: int) -> Int64s:
    """Return a whole permutation of ``range(n)``: for sizes that fit in memory, such as a number of shards.

    >>> sorted(shuffled(5, mix_key(1)).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(mix_keys(key, np.arange(n)), kind="stable").astype(np.int64)


def _rank_of_hash(position: Int64s, size: Int64s, key: Uint64s) -> Int64s:
    """Order ``range(size)`` by hashes: element ``position`` goes to the rank of its hash. Exactly uniform."""
    elements = np.arange(int(size.max(initial=0)))
    hashes = _finalise(key[:, None] + _finalise((elements + 1).astype(np.uint64)))
    own = np.take_along_axis(hashes, position[:, None], axis=1)
    # Equal hashes, once in 2**58, are ordered by element so that the answer stays a bijection.
    before = (hashes < own) | ((hashes == own) & (elements < position[:, None]))
    ranks: Int64s = (before & (elements < size[:, None])).sum(axis=1)
    return ranks


@functools.lru_cache(maxsize=4)
def _table(size: int, key: int) -> Int64s:  # such as the blocks of the first window of a lane
    return _feistel(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))


def _feistel(position: Int64s, size: Int64s, key: Uint64s) -> Int64s:
    """Encrypt within the least power of two that holds ``range(size)``, again while the answer is outside."""
    # frexp counts bits exactly; a logarithm rounds, and loses an element just above a power of two.
    bits = np.frexp((size - 1).astype(np.float64))[1].astype(np.uint64)
    out, limit = position.astype(np.uint64), size.astype(np.uint64)
    outside = np.arange(len(out))
    while len(outside):
        out[outside] = some = _encrypt(out[outside], bits[outside], key[outside])
        outside = outside[some >= limit[outside]]
    return out.astype(np.int64)


def _encrypt(words: Uint64s, bits: Uint64s, key: Uint64s) -> Uint64s:
    """One pass of an alternating Feistel network: each round changes one part by a hash of the other."""
    low = bits // np.uint64(2)
    shifts = np.uint64(64) - (bits - low), np.uint64(64) - low  # the high part has the odd bit
    halves: list[Uint64s] = [words >> low, words & ((np.uint64(1) << low) - np.uint64(1))]
    for number in range(_ROUNDS):
        changed = number % 2
        word = key + np.uint64((number + 1) * _GOLDEN & _MASK)
        round_key = (word ^ (word >> np.uint64(29))) * np.uint64(_MULTIPLIERS[1])
        mixed = (halves[1 - changed] ^ round_key) * np.uint64(_MULTIPLIERS[0])
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_MULTIPLIERS[1])
        halves[changed] = halves[changed] ^ (mixed >> shifts[changed])
    return (halves[0] << low) | halves[1]


def _finalise(words: Uint64s) -> Uint64s:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return words ^ (words >> np.uint64(31))
