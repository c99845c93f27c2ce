"""Images that are made smaller on the way into shards."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from tests.support.packing import packed_members
from tests.support.photos import decode_rgb, encode, exif, photo, psnr
from wdsdist.diagnostics.verify import verify
from wdsdist.errors import ArgumentError, SampleError, SourceError
from wdsdist.packing import pack as pack_with
from wdsdist.packing.options import Images
from wdsdist.packing.reencoding import reencoded
from wdsdist.shards.manifest import Manifest

PHOTO = photo(300, 400)
LOSSY = {"jpeg", "webp"}


def pack(source: Any, dest: Any, **options: Any) -> Manifest:
    """Pack with the options of `Images` given one by one."""
    images = {name: options.pop(name) for name in ("max_side", "quality", "store", "max_pixels") if name in options}
    return pack_with(source, dest, images=Images(**images) if images else None, **options)


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def shrink(data: bytes, side: int = 100, quality: int = 90, **options: Any) -> bytes:
    return reencoded(data, Images(max_side=side, quality=quality), **options)


class TestOneImage:
    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "bmp", "tiff"])
    def test_it_keeps_its_format_and_looks_the_same(self, kind: str) -> None:
        image = opened(shrink(encode(PHOTO, format=kind)))
        assert (image.format, image.size, image.mode) == (kind.upper(), (100, 75), "RGB")
        wanted = Image.fromarray(PHOTO).resize((100, 75), Image.Resampling.LANCZOS)
        assert psnr(image, wanted) > (27 if kind in LOSSY else 33)

    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "bmp", "tiff"])
    def test_one_that_is_small_enough_stays_byte_for_byte(self, kind: str) -> None:
        data = encode(PHOTO, format=kind)
        assert shrink(data, 400) is data

    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
    def test_the_orientation_of_the_camera_is_applied_once(self, kind: str) -> None:
        image = opened(shrink(encode(PHOTO, format=kind, exif=exif(6))))  # held a quarter turn clockwise
        assert image.size == (75, 100)
        assert image.getexif().get(0x0112, 1) == 1
        assert image.getexif().get(0x010F) is None
        upright = Image.fromarray(PHOTO).rotate(-90, expand=True).resize((75, 100), Image.Resampling.LANCZOS)
        assert psnr(image, upright) > 27

    @pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
    def test_a_colour_profile_is_kept(self, kind: str) -> None:
        profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        assert opened(shrink(encode(PHOTO, format=kind, icc_profile=profile))).info["icc_profile"] == profile

    @pytest.mark.parametrize(("mode", "beside_others"), [("P", False), ("1", False), ("I;16", False), ("L", True)])
    def test_labels_are_not_mixed(self, mode: str, beside_others: bool) -> None:
        values = (np.arange(300)[:, None] // 30 * 20 + np.arange(400) // 100 % 2 * 7).astype(
            np.uint16 if "I" in mode else np.uint8
        )
        labels = Image.fromarray(values * (100 if "I" in mode else 1))
        if mode == "P":
            labels.putpalette(list(range(256)) * 3)
        labels = labels.convert("1", dither=Image.Dither.NONE) if mode == "1" else labels
        buffer = io.BytesIO()
        labels.save(buffer, "png")
        again = opened(shrink(buffer.getvalue(), beside_others=beside_others))
        assert again.mode == labels.mode
        assert again.getpalette() == labels.getpalette()
        assert set(np.unique(np.asarray(again))) == set(np.unique(np.asarray(labels)))

    @pytest.mark.parametrize("kind", ["png", "webp", "tiff"])
    def test_animations_and_documents_stay(self, kind: str) -> None:
        buffer = io.BytesIO()
        pages = [Image.fromarray(np.roll(PHOTO, shift)) for shift in (0, 100)]
        pages[0].save(buffer, kind, save_all=True, append_images=pages[1:])
        assert shrink(buffer.getvalue()) == buffer.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Ten samples: a large photograph with its label map and class; every third photograph is small."""
    root = tmp_path / "images"
    root.mkdir()
    for number in range(10):
        side = 50 if number % 3 == 0 else 200
        (root / f"{number}.jpg").write_bytes(encode(photo(side, side, seed=number)))
        (root / f"{number}.seg.png").write_bytes(encode(np.full((side, side), number, np.uint8), format="png"))
        (root / f"{number}.cls").write_text(str(number))
    return root


class TestADataSet:
    def test_large_images_become_small_and_all_else_stays(self, images: Path, tmp_path: Path) -> None:
        manifest = pack(images, tmp_path / "dest", shard_samples=3, max_side=100)
        assert verify(manifest) == []
        for name, data in packed_members(tmp_path / "dest").items():
            original = (images / name).read_bytes()
            if name.endswith(".cls") or max(opened(original).size) <= 100:
                assert data == original
            else:
                assert opened(data).size == (100, 100)
                assert name.endswith("jpg") or set(np.unique(np.asarray(opened(data)))) == {int(name[0])}
        assert manifest.extra["images"] == {"max_side": 100, "quality": 90}

    def test_an_image_of_too_many_pixels_is_named_with_the_limit(self, images: Path, tmp_path: Path) -> None:
        reason = (
            r"cannot be encoded again \(an image has 200 x 200 pixels, more than max_pixels, 39,999: raise max_pixels"
        )
        with pytest.raises(SourceError, match=reason):
            pack(images, tmp_path / "dest", max_side=100, max_pixels=39_999)
        pack(images, tmp_path / "dest", max_side=100, max_pixels=40_000, overwrite=True)


def stored(data: bytes, store: Any = "raw", **options: Any) -> bytes:
    beside_others = options.pop("beside_others", False)
    return reencoded(data, Images(store=store, **options), beside_others=beside_others)


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


TORN = encode(PHOTO)[:5000] + b"\xff\xd9" + encode(PHOTO)[5000:]
"""A JPEG that ends in its middle, which Pillow fills up with grey."""
FORMS = ["jpeg", "turned", "cmyk", "grey", "png", "alpha", "16 bits", "palette", "webp", "ppm"]


@functools.cache
def in_form(form: str) -> bytes:
    """Return the photograph in one of these forms; made for the first test that needs it, not for the collection."""
    if form == "turned":
        return encode(PHOTO, exif=exif(6))
    if form == "alpha":
        return encode(np.dstack([PHOTO, PHOTO[..., 0]]), format="png")
    if form == "16 bits":
        return encode(np.arange(300 * 400, dtype=np.uint16).reshape(300, 400), format="png")
    if form in ("cmyk", "grey"):
        return encode(PHOTO, mode={"cmyk": "CMYK", "grey": "L"}[form])
    return encode(PHOTO, format="gif" if form == "palette" else form)


class TestStoredImages:
    @pytest.mark.parametrize("form", FORMS)
    def test_raw_pixels_are_those_that_decoding_gives(self, form: str) -> None:
        made = pixels(stored(in_form(form)))
        assert (made.dtype, made.shape) == (np.uint8, (400, 300, 3) if form == "turned" else (300, 400, 3))
        assert (made == decode_rgb(in_form(form))).all()

    @pytest.mark.parametrize("form", FORMS)
    def test_a_jpeg_has_the_pixels_that_decoding_gives(self, form: str) -> None:
        made = opened(stored(in_form(form), "jpeg", quality=95))
        assert (made.format, made.getexif().get(0x0112, 1)) == ("JPEG", 6 if form == "turned" else 1)
        wanted = Image.fromarray(decode_rgb(in_form(form)))
        assert psnr(Image.fromarray(decode_rgb(stored(in_form(form), "jpeg", quality=95))), wanted) > 30

    def test_a_jpeg_that_would_not_get_smaller_stays(self) -> None:
        coarse = encode(PHOTO, quality=40)
        assert stored(coarse, "jpeg", quality=90) is coarse
        assert len(stored(encode(PHOTO, quality=95), "jpeg", quality=40)) < len(encode(PHOTO, quality=95)) / 2

    @pytest.mark.parametrize("form", FORMS)
    def test_a_large_one_is_scaled_down_upright(self, form: str) -> None:
        for data in (
            pixels(stored(in_form(form), max_side=100)),
            decode_rgb(stored(in_form(form), "jpeg", max_side=100)),
        ):
            assert data.shape == ((100, 75, 3) if form == "turned" else (75, 100, 3))
            wanted = Image.fromarray(decode_rgb(in_form(form))).resize(data.shape[1::-1], Image.Resampling.LANCZOS)
            assert psnr(Image.fromarray(data), wanted) > 27

    @pytest.mark.parametrize("store", ["raw", "jpeg"])
    def test_label_maps_beside_an_image_keep_their_numbers(self, store: Any) -> None:
        for labels in (encode(np.full((300, 400), 7, np.uint8), format="png"), in_form("16 bits")):
            assert stored(labels, store, beside_others=True) is labels

    @pytest.mark.parametrize("data", [b"", b"<html>not found</html>", b"\xff\xd8\xff", encode(PHOTO)[:5000], TORN])
    def test_what_is_broken_is_an_error(self, data: bytes) -> None:
        for store, side in (("raw", None), ("raw", 100), ("jpeg", None), ("jpeg", 100), (None, 100)):
            with pytest.raises(SampleError):
                stored(data, store, max_side=side)


class TestAStoredDataSet:
    def test_shards_are_planned_by_the_size_of_pixels(self, tmp_path: Path) -> None:
        (tmp_path / "photos").mkdir()
        for number in range(40):
            (tmp_path / "photos" / f"{number}.jpg").write_bytes(encode(photo(64, 64, seed=number)))
        manifest = pack(tmp_path / "photos", tmp_path / "dest", store="raw", shard_bytes=130_000)
        assert len(manifest.shards) >= 4
        assert all(65_000 < shard.size <= 130_000 for shard in manifest.shards[:-1])
        assert manifest.extra["images"] == {"store": "raw"}

    def test_every_image_gets_the_name_of_its_form(self, images: Path, tmp_path: Path) -> None:
        (images / "3.jpg").rename(images / "3.webp")
        (images / "4.jpg").rename(images / "4.left.jpeg")
        pack(images, tmp_path / "dest", store="jpeg", quality=80)
        names = packed_members(tmp_path / "dest")
        assert {"3.jpg", "4.left.jpg", "5.jpg", "5.seg.png", "5.cls"} <= set(names)

    def test_two_images_of_a_sample_that_would_get_one_name_are_refused(self, images: Path, tmp_path: Path) -> None:
        (images / "4.webp").write_bytes(encode(PHOTO, format="webp"))
        with pytest.raises(SourceError, match=r"sample '4' has a member 'npy', which is there twice"):
            pack(images, tmp_path / "dest", store="raw")
        pack(images, tmp_path / "dest", store="raw", on_error="skip", overwrite=True)

    def test_workers_do_not_change_the_bytes_nor_does_a_pause(
        self, images: Path, tmp_path: Path, data_bytes: Callable[[Path], dict[str, bytes]]
    ) -> None:
        for workers in (1, 2):
            pack(images, tmp_path / str(workers), shard_samples=3, store="raw", workers=workers)
        (tmp_path / "2" / "shard-000001.tar").unlink()
        pack(images, tmp_path / "2", shard_samples=3, store="raw")
        assert data_bytes(tmp_path / "1") == data_bytes(tmp_path / "2")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"store": "png"}, "store is 'png': it must be 'raw' or 'jpeg'"),
            ({"store": "raw", "quality": 90}, "no image is encoded as JPEG or WebP: leave it out"),
            ({"store": "jpeg", "quality": 96}, "quality is 96"),
            ({"max_side": 9, "quality": 0}, "quality is 0"),
        ],
    )
    def test_options_that_cannot_work_are_refused(self, tmp_path: Path, options: dict[str, Any], reason: str) -> None:
        with pytest.raises(ArgumentError, match=reason):
            pack(tmp_path / "none", tmp_path / "dest", **options)
