"""Frames of a film, as a client sent it: some of them, by `--media-io-kwargs`, each upright and in three colours.

What comes are strangers' bytes: only containers of films are opened, nothing that names other files or addresses. All
packets are looked at once, which decodes nothing, so that it is known how many frames there are; then those frames are
decoded that are wanted, from the last whole picture before each. It goes on in small steps, since a long film takes
longer than an actor may stand still; ../steps.py says when it has taken too long.
"""

from __future__ import annotations

import binascii
import io
from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...options.objects.media import VideoReading
from ...sound.decode import frames_of, packets_of
from ..pictures import Pictures
from ..refused import MediaRefused

if TYPE_CHECKING:
    from av.container import InputContainer
    from PIL.Image import Image

CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,ogg,gif,asf"
MOST_FRAMES = 1_000_000  # that a file may have
FASTEST = 1000.0  # frames of a second
AT_ONCE = 4096  # packets that are looked at in one step
MISSING = "PyAV reads films, and is not installed on the server: pip install 'actorserve[video]'"


class Film(NamedTuple):
    """What is known before the first frame is there."""

    total: int  # frames that it has
    fps: float
    indices: list[int]  # of the frames that are taken

    @property
    def sampled_fps(self) -> float:
        """Of the frames that are taken."""
        return len(self.indices) / self.total * self.fps


class Frames(Protocol):
    """Of one film; `film` is there with the first frame."""

    film: Film | None

    def steps(self) -> Iterator[Image | None]:
        """The frames in order; None: a step towards the next is done. MediaRefused says what is wrong."""


def chosen(total: int, fps: float, reading: VideoReading) -> Film:
    """Which frames are taken: evenly over all of it, the first and the last among them."""
    count = min(reading.num_frames, total)
    if reading.fps is not None:
        count = min(count, max(1, int(total / fps * reading.fps)))
    return Film(total, fps, np.linspace(0, total - 1, count).astype(int).tolist())


class ListedFrames:
    """Of a film that is a list of pictures: data:video/jpeg;base64,ONE,TWO,…"""

    def __init__(self, data: bytes, reading: VideoReading, pictures: Pictures) -> None:
        self._parts = data.split(b",")
        self._pictures = pictures
        self.film: Film | None = None
        if len(self._parts) > reading.num_frames:
            raise MediaRefused(
                f"it is {len(self._parts)} frames, of which at most {reading.num_frames} are taken "
                '(--media-io-kwargs \'{"video": {"num_frames": N}}\').'
            )
        self.film = Film(len(self._parts), reading.fps or 1.0, list(range(len(self._parts))))

    def steps(self) -> Iterator[Image | None]:
        """See Frames."""
        for number, part in enumerate(self._parts):
            try:
                yield self._pictures.read(binascii.a2b_base64(part, strict_mode=True))
            except binascii.Error as error:
                raise MediaRefused(f"the base64 of frame {number} is wrong: {error}.") from None
            except MediaRefused as error:
                raise MediaRefused(f"frame {number}: {error}", error.status) from None


class FileFrames:
    """Of a file."""

    def __init__(self, data: bytes, reading: VideoReading, pixels: int) -> None:
        """`pixels`: that a frame may have."""
        self._data, self._reading, self._pixels = data, reading, pixels
        self.film: Film | None = None

    def steps(self) -> Iterator[Image | None]:
        """See Frames."""
        try:
            import av
        except ImportError:
            raise MediaRefused(f"{MISSING}.", 501) from None
        try:
            with self._open(av) as container:
                times, starts = yield from self._look(container)
                yield from self._decode(container, times, starts)
        except (av.FFmpegError, OSError, UnicodeDecodeError, EOFError) as error:
            reason = str(getattr(error, "strerror", None) or error or "it ends too soon")
            raise MediaRefused(f"it is no film in a form that is read ({reason[:200]}).") from None

    def _open(self, av: Any) -> InputContainer:
        found: InputContainer = av.open(
            io.BytesIO(self._data), mode="r", metadata_errors="ignore", options={"format_whitelist": CONTAINERS}
        )
        return found

    def _look(self, container: InputContainer) -> Generator[None, None, tuple[list[int], list[int]]]:
        """Through all packets; returns when frames are shown, in order, and those from which decoding may begin."""
        if not container.streams.video:
            raise MediaRefused("it has no pictures.")
        stream = container.streams.video[0]
        width, height = stream.codec_context.width, stream.codec_context.height
        if width * height > self._pixels:
            raise MediaRefused(f"its frames have {width} times {height} pixels, {self._more()}")
        times: list[int | None] = []
        starts: list[int] = []
        for packet in packets_of(container, stream):
            if not packet.size:
                continue
            times.append(packet.pts)
            if packet.is_keyframe and packet.pts is not None:
                starts.append(packet.pts)
            if len(times) > MOST_FRAMES:
                raise MediaRefused(f"it has more than {MOST_FRAMES} frames.")
            if len(times) % AT_ONCE == 0:
                yield
        if not times:
            raise MediaRefused("it has no frames.")
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        self.film = chosen(len(times), rate if 0 < rate <= FASTEST else 24.0, self._reading)
        known = sorted(time for time in times if time is not None)
        return known if len(known) == len(times) else [], sorted(starts)

    def _decode(self, container: InputContainer, times: list[int], starts: list[int]) -> Iterator[Image | None]:
        """The frames that are taken. Where not every packet says its time, all up to the last are decoded."""
        assert self.film is not None
        stream = container.streams.video[0]
        stream.codec_context.options = {"max_pixels": str(self._pixels)}
        stream.codec_context.thread_count = 1
        container.seek(times[0] if times else 0, stream=stream, backward=True)
        if not times:
            yield from self._in_order(container)
            return
        decoding, last = _decoded(container), None
        for index in self.film.indices:
            wanted = times[index]
            start = starts[bisect_right(starts, wanted) - 1] if starts and starts[0] <= wanted else None
            if start is not None and (last is None or last.pts is None or start > last.pts):
                container.seek(start, stream=stream, backward=True)
                decoding = _decoded(container)
            while last is None or last.pts is None or last.pts < wanted:
                if (frames := next(decoding, None)) is None:
                    break
                last = frames[0] if frames else last
                yield None
            if last is None:
                raise MediaRefused("it has no frame that can be decoded.")
            yield self._shown(last)

    def _in_order(self, container: InputContainer) -> Iterator[Image | None]:
        assert self.film is not None
        wanted = iter(self.film.indices)
        at, number, shown = next(wanted), 0, None
        for frames in _decoded(container):
            yield None
            while frames and number == at:
                shown = self._shown(frames[0])
                yield shown
                at = next(wanted, -1)
            if at < 0:
                return
            number += len(frames)
        if shown is None:
            raise MediaRefused("it has no frame that can be decoded.")
        while at >= 0:  # its last packets made no frames
            yield shown
            at = next(wanted, -1)

    def _shown(self, frame: Any) -> Image:
        if frame.width * frame.height > self._pixels:
            raise MediaRefused(f"a frame has {frame.width} times {frame.height} pixels, {self._more()}")
        picture: Image = frame.to_image()
        return picture.rotate(frame.rotation, expand=True) if frame.rotation else picture

    def _more(self) -> str:
        return f"more than the {self._pixels} that --max-media-pixels allows."


def _decoded(container: InputContainer) -> Iterator[list[Any]]:
    """One frame after the other; none of what is damaged."""
    for frames in frames_of(container, container.streams.video[0]):
        yield from [[frame] for frame in frames] or [[]]
