"""What a training holds in the memory of one GPU at its peak, counted from the tensors of a layer, of the loss and of ZeRO.

A layer keeps for its backward pass what transformers' modules and an attention without probabilities do. Left out is what
CUDA and NCCL take for themselves, and what the allocator loses between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from swiftkv.cost import added_weights
from swiftkv.distill.recipe import Recipe
from swiftkv.errors import UserError
from swiftkv.pricing.size import Size
from swiftkv.spec import SwiftKVSpec

FLOAT32 = 4
BUCKET = 5 * 10**8  # gradients that DeepSpeed reduces at once,
LIVE = 10**9  # and weights that its ZeRO-3 keeps for their next use
LOSS_ROWS, LOSS_NUMBERS = 256, 2**27  # `swiftkv.distill.losses`: ROWS and GPU_INNER_ELEMENTS


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU at the peak of a training.

    Attributes:
        weights: of the model, what is trained included; with ZeRO-3 the GPU's share.
        optimizer: its share of master weights, AdamW's moments and gradients.
        activations: what layers keep for the backward pass.
        working: what the loss, or the backward pass of one layer, takes besides.
    """

    weights: float
    optimizer: float
    activations: float
    working: float

    @property
    def peak(self) -> float:
        """All of it."""
        return self.weights + self.optimizer + self.activations + self.working


def training_memory(size: Size, spec: SwiftKVSpec | None, recipe: Recipe, gpus: int) -> Memory:
    """The memory of each of so many GPUs; `spec` None trains the model as it is.

    Raises:
        UserError: the model has layers that are not counted here.
    """
    if size.architecture.latent:
        raise UserError("what layers with latent attention and experts keep is not counted")
    training = _Training(size, spec, recipe)
    divided = recipe.zero_stage == 3
    gradients = training.number * (1 if divided else 2)  # ZeRO-2 sums micro-batches in a second place
    state = (3 * FLOAT32 + gradients) * size.trained(spec, recipe.train) / gpus
    return Memory(
        training.weights / (gpus if divided else 1),
        state + (training.bucket if divided else 0),  # with ZeRO-3 it stays
        training.activations,
        max(training.backward, training.loss),
    )


class _Training:
    """The parts of a training that are not divided among GPUs, in bytes.

    Args:
        size: of the model.
        spec: the rewiring.
        recipe: how it is trained.
    """

    def __init__(self, size: Size, spec: SwiftKVSpec | None, recipe: Recipe) -> None:
        self.size, self.arch, self.spec, self.recipe = size, size.arch, spec, recipe
        self.number = 2 if recipe.dtype == "bfloat16" else FLOAT32  # of an activation, a gradient or a 16-bit weight
        self.depth = size.layers - (spec.num_key_value_layers if spec else 0)  # layers with a backward pass
        self.head = self.number * self.arch.vocab_size * size.width
        self.stream = self.tokens * self.number * size.width  # hidden states between two layers
        self.inner = self.tokens * self.number * self.arch.intermediate_size  # and inside a feed-forward part
        self.matrix = size.width * self.arch.intermediate_size  # weights of the largest linear layer
        self.byte = 1 if size.fp8 else self.number  # of a weight of a layer
        self.bucket = self.number * BUCKET

    @property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.recipe.micro_batch_size * self.recipe.max_length

    @property
    def kept(self) -> float:
        """What a layer keeps, keys and values apart: float32 of both norms, inputs of trained linear layers, and attention's."""
        queries = self.tokens * self.arch.query_weights // self.size.width
        kept = 2 * FLOAT32 * self.tokens * self.size.width + self.stream + 3 * self.inner
        kept += (2 * self.number + self.normalized) * queries  # and as many that attention gives
        if self.recipe.train != "qkv":  # the norms' weights, and all linear layers
            kept += 3 * self.stream + self.inner
        return kept

    @property
    def activations(self) -> float:
        """What all layers keep, each its input alone where it is computed anew; and the gradient of a trained head.

        Without that, autograd also keeps the weights that ZeRO-3 has gathered.
        """
        spec, anew = self.spec, self.recipe.checkpoint_activations
        makers = len(spec.groups) if spec else 0 if anew else self.depth  # of keys and values that are kept
        cached = self.arch.cached(spec.num_key_value_heads if spec else None) * (self.number + self.normalized / 2)
        layer = self.stream if anew else self.kept
        if not anew and self.recipe.zero_stage == 3:
            layer += self.byte * self.size.layer_parameters
        layers = self.depth * layer + self.tokens * makers * cached
        return layers + (self.head if self.trains_head else 0)

    @property
    def normalized(self) -> int:
        """Bytes that a norm by head keeps of each query or key: it in float32 and as it was multiplied with the weight."""
        return FLOAT32 + self.number if self.size.architecture.normalized else 0

    @property
    def backward(self) -> float:
        """Of the layer before the last: gradients of its feed-forward part, and what ZeRO gathers or reduces."""
        feed_forward = 3 * self.inner
        if self.size.fp8:  # a weight as float32, before and after it is scaled
            feed_forward = max(feed_forward, 2 * FLOAT32 * self.matrix)
        # The last layer's activations are free by then.
        layer = self.kept if self.recipe.checkpoint_activations else -self.kept
        if self.recipe.zero_stage == 2:
            zero = 2 * self.bucket
        else:
            zero = max(self.byte * (self.size.layer_parameters + self.matrix), self.number * LIVE)
        return layer + feed_forward + 4 * self.stream + zero

    @property
    def loss(self) -> float:
        """Hidden states of both models and their gradient, logits of a few rows, and a head that is gathered or trained."""
        vocabulary, models = self.arch.vocab_size, 2 if self.recipe.loss == "distillation" else 1
        rows = min(self.tokens, LOSS_ROWS)
        inner = min(rows, max(1, LOSS_NUMBERS // vocabulary))
        logits = models * vocabulary * (3 * FLOAT32 * inner + self.number * rows)
        compared = 0
        if self.spec and self.recipe.hidden_state_weight:  # the student's of all layers, and both in float32
            compared = self.depth * self.stream + 4 * FLOAT32 * self.tokens * self.size.width
        gathered = self.head if self.recipe.zero_stage == 3 else 0
        summed = FLOAT32 * self.head / self.number if self.trains_head else 0
        return (2 + 2 * models) * self.stream + logits + compared + gathered + summed

    @property
    def trains_head(self) -> bool:
        """Whether a language-model head gets a gradient."""
        return self.spec is None or self.spec.early_exit

    @property
    def weights(self) -> float:
        """Of all that the trainer loads and adds."""
        weights = self.size.bytes * (1 if self.size.fp8 else self.number / 2)
        if self.spec is None:
            return weights
        added = self.number * added_weights(self.arch, self.spec)
        if self.recipe.train == "upper_layers":  # of the student's own, and the teacher has such projections too
            weights += self.number * self.depth * self.size.layer_parameters + added
        return weights + added + (self.head if self.spec.early_exit else 0)
