"""Which pieces of the decoder are compiled: the halves of a layer around its attention."""

from __future__ import annotations

from trials.serve.model import Decoder, Layer
from trials.train.compiling import Compiler


def compile_layers(decoder: Decoder, compiler: Compiler) -> None:
    """In place, as the ``compile.*`` knobs say. All layers share their graphs."""
    if not compiler.enabled:
        return
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        layer.before = compiler.piece(layer.before)  # type: ignore[method-assign]
        layer.after = compiler.piece(layer.after)  # type: ignore[method-assign]
    if compiler.scope in ("model", "block_and_loss"):
        decoder.logits = compiler.piece(decoder.logits)  # type: ignore[method-assign]
