"""Text to image on the neuron device: a Stable Diffusion pipeline loaded with device_map="neuron".

    python examples/generate_image.py --out picture.png

The pipeline is a tiny Stable Diffusion with random weights, written to a folder and loaded as any other, so that
nothing is downloaded: its pictures are coloured noise. Give --model for a real one. The script makes two pictures of
one size and one of another, prints what was compiled, and compares with the same pipeline on the CPU.
"""

import argparse
import string
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

import optimum_neuron_torch
from optimum_neuron_torch import NeuronConfig


PROMPT = "a lighthouse at night, oil on canvas"
WORDS = "a at in of on the and with canvas cat house light lighthouse night oil sea".split()


def make_tokenizer() -> CLIPTokenizer:
    """A CLIP tokenizer (byte pairs, words end in </w>) that knows the letters and a few whole words."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges = []
    for word in WORDS:
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        while len(symbols) > 1:
            pair, symbols = symbols[:2], ["".join(symbols[:2]), *symbols[2:]]
            if symbols[0] not in pieces:
                merges.append(tuple(pair))
                pieces.append(symbols[0])
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)


def make_pipeline(folder: str | Path, *, seed: int = 0) -> Path:
    """Write a tiny Stable Diffusion with random weights (64 x 64 pictures) into `folder`."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.save_pretrained(folder)
    return Path(folder)


def draw(pipe: DiffusionPipeline, *, seed: int, steps: int, size: tuple[int, int] | None = None) -> Image.Image:
    """One picture; the generator lives on the CPU, so that a seed gives the same noise on every device."""
    width, height = size or (None, None)
    generator = torch.Generator("cpu").manual_seed(seed)
    return pipe(PROMPT, num_inference_steps=steps, width=width, height=height, generator=generator).images[0]


def difference(a: Image.Image, b: Image.Image) -> int:
    """The largest difference of two pictures, in levels of 255."""
    return int(np.abs(np.asarray(a, dtype=int) - np.asarray(b, dtype=int)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or hub name of a pipeline (default: a tiny random Stable Diffusion)")
    parser.add_argument("--out", type=Path, default=Path("picture.png"))
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        name = arguments.model or make_pipeline(folder)
        # Graphs of a model this small are interpreted sooner than they are compiled to C++.
        config = None if arguments.model else NeuronConfig(options={"executor": "aten"})
        pipe = DiffusionPipeline.from_pretrained(name, device_map="neuron", neuron_config=config)
        on_cpu = DiffusionPipeline.from_pretrained(name)

    for label, seed, size in (("first picture", 0, None), ("same size", 1, None), ("another size", 2, (96, 64))):
        before = optimum_neuron_torch.report(pipe)
        start = time.perf_counter()
        picture = draw(pipe, seed=seed, steps=arguments.steps, size=size)
        seconds = time.perf_counter() - start
        after = optimum_neuron_torch.report(pipe)
        compiled, cached = after.graphs - before.graphs, after.cached - before.cached
        levels = difference(picture, draw(on_cpu, seed=seed, steps=arguments.steps, size=size))
        print(
            f"{label}: {picture.width} x {picture.height} in {seconds:.1f} s, {compiled} graphs compiled, "
            f"{cached} from the cache, largest difference to the CPU's picture {levels} of 255"
        )
        if seed == 0:
            picture.save(arguments.out)

    print(f"saved {arguments.out}\n")
    print(optimum_neuron_torch.report(pipe))


if __name__ == "__main__":
    main()
