"""PyTorch: networks written from their papers (``models/``), and the forms in which people have them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.compatibility.packages import installed
from benchmarks.compatibility.source import Source, checked, factory

IDS = ("--range", "ids=0:99")
PICTURE = ("--shape", "input:1x3x64x64")
X = ("--shape", "x:1x3x64x64")

CNN = {
    "alexnet": ("AlexNet", "Krizhevsky et al. 2012"),
    "zfnet": ("ZFNet", "arXiv:1311.2901"),
    "network_in_network": ("Network in Network", "arXiv:1312.4400"),
    "vgg": ("VGG", "arXiv:1409.1556"),
    "googlenet": ("GoogLeNet", "arXiv:1409.4842"),
    "inception_v3": ("Inception v3", "arXiv:1512.00567"),
    "resnet18": ("ResNet", "arXiv:1512.03385"),
    "resnet50": ("ResNet (bottleneck)", "arXiv:1512.03385"),
    "resnext": ("ResNeXt", "arXiv:1611.05431"),
    "wide_resnet": ("Wide ResNet", "arXiv:1605.07146"),
    "preact_resnet": ("Pre-activation ResNet", "arXiv:1603.05027"),
    "senet": ("SENet", "arXiv:1709.01507"),
    "cbam": ("CBAM", "arXiv:1807.06521"),
    "densenet": ("DenseNet", "arXiv:1608.06993"),
    "dual_path": ("Dual path network", "arXiv:1707.01629"),
    "squeezenet": ("SqueezeNet", "arXiv:1602.07360"),
    "mobilenet_v1": ("MobileNet v1", "arXiv:1704.04861"),
    "mobilenet_v2": ("MobileNet v2", "arXiv:1801.04381"),
    "mobilenet_v3": ("MobileNet v3", "arXiv:1905.02244"),
    "mnasnet": ("MNASNet", "arXiv:1807.11626"),
    "efficientnet": ("EfficientNet", "arXiv:1905.11946"),
    "efficientnet_v2": ("EfficientNet v2", "arXiv:2104.00298"),
    "shufflenet_v1": ("ShuffleNet", "arXiv:1707.01083"),
    "shufflenet_v2": ("ShuffleNet v2", "arXiv:1807.11164"),
    "xception": ("Xception", "arXiv:1610.02357"),
    "regnet": ("RegNet", "arXiv:2003.13678"),
    "convnext": ("ConvNeXt", "arXiv:2201.03545"),
    "ghostnet": ("GhostNet", "arXiv:1911.11907"),
    "repvgg": ("RepVGG", "arXiv:2101.03697"),
    "res2net": ("Res2Net", "arXiv:1904.01169"),
    "sknet": ("SKNet", "arXiv:1903.06586"),
    "darknet": ("Darknet", "arXiv:1804.02767"),
    "cspnet": ("CSPNet", "arXiv:1911.11929"),
    "convmixer": ("ConvMixer", "arXiv:2201.09792"),
}
"""Name → architecture and paper; all take pictures under the name that nn.Sequential gives its input."""

OTHERS: dict[str, dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "cnn": {
        "lenet": ("LeNet-5", "LeCun et al. 1998", ("--shape", "input:1x1x28x28")),
        "hrnet": ("HRNet", "arXiv:1908.07919", X),
        "spatial_transformer": ("Spatial transformer", "arXiv:1506.02025", X),
        "capsnet": ("CapsNet", "arXiv:1710.09829", X),
    },
    "dense": {
        "unet": ("U-Net", "arXiv:1505.04597", X),
        "unet_plus_plus": ("UNet++", "arXiv:1807.10165", X),
        "segnet": ("SegNet", "arXiv:1511.00561", X),
        "fcn": ("FCN", "arXiv:1411.4038", X),
        "deeplab_v3": ("DeepLab v3", "arXiv:1706.05587", X),
        "pspnet": ("PSPNet", "arXiv:1612.01105", X),
        "fpn": ("FPN", "arXiv:1612.03144", X),
        "retinanet": ("RetinaNet", "arXiv:1708.02002", X),
        "ssd": ("SSD", "arXiv:1512.02325", X),
        "yolo": ("YOLO", "arXiv:1804.02767", ("--shape", "images:1x3x64x64")),
        "centernet": ("CenterNet", "arXiv:1904.07850", X),
        "hourglass": ("Stacked hourglass", "arXiv:1603.06937", X),
        "openpose": ("OpenPose", "arXiv:1812.08008", X),
        "dbnet": (
            "DBNet",
            "arXiv:1911.08947",
            ("--min-shape", "x:1x3x32x32", "--shape", "x:1x3x64x64", "--max-shape", "x:4x3x96x96"),
        ),
        "crnn": ("CRNN", "arXiv:1507.05717", ("--shape", "x:1x1x32x96", "--max-shape", "x:8x1x32x160")),
        "srcnn": ("SRCNN", "arXiv:1501.00092", ("--shape", "input:1x3x32x32", "--max-shape", "input:4x3x48x64")),
        "espcn": ("ESPCN", "arXiv:1609.05158", ("--shape", "input:1x3x32x32", "--max-shape", "input:4x3x48x64")),
        "edsr": ("EDSR", "arXiv:1707.02921", ("--shape", "x:1x3x32x32")),
        "dncnn": ("DnCNN", "arXiv:1608.03981", ("--shape", "x:1x1x32x32")),
        "siamese": ("Siamese network", "Koch et al. 2015", ("--shape", "left:1x3x32x32,right:1x3x32x32")),
        "flownet": ("FlowNet", "arXiv:1504.06852", ("--shape", "first:1x3x32x32,second:1x3x32x32")),
        "c3d": ("C3D", "arXiv:1412.0767", ("--shape", "input:1x3x8x32x32")),
        "temporal_shift": ("Temporal shift module", "arXiv:1811.08383", ("--shape", "clip:1x4x3x32x32")),
    },
    "recurrent": {
        "rnn": ("RNN", "Elman 1990", ("--shape", "ids:1x20", "--max-shape", "ids:16x40", *IDS)),
        "lstm": ("LSTM", "Hochreiter and Schmidhuber 1997", ("--shape", "ids:1x20", "--max-shape", "ids:16x40", *IDS)),
        "gru": ("GRU", "arXiv:1406.1078", ("--shape", "ids:1x20", "--max-shape", "ids:16x40", *IDS)),
        "bilstm_tagger": (
            "BiLSTM tagger",
            "arXiv:1508.01991",
            ("--shape", "ids:1x20", "--max-shape", "ids:16x40", *IDS),
        ),
        "streaming_lstm": ("LSTM", "streaming, state in and out", ("--shape", "x:1x5x8,h:1x1x16,c:1x1x16")),
        "lstm_projection": ("LSTM with projection", "arXiv:1402.1128", ("--shape", "x:1x10x8")),
        "seq2seq_attention": ("Seq2seq with attention", "arXiv:1409.0473", ("--shape", "ids:1x12", *IDS)),
        "convlstm": ("ConvLSTM", "arXiv:1506.04214", ("--shape", "clip:1x4x1x16x16")),
        "qrnn": ("QRNN", "arXiv:1611.01576", ("--shape", "x:1x12x8")),
        "tcn": ("TCN", "arXiv:1803.01271", ("--shape", "input:1x4x64", "--max-shape", "input:8x4x128")),
        "textcnn": ("TextCNN", "arXiv:1408.5882", ("--shape", "ids:1x20", *IDS)),
        "fasttext": ("fastText", "arXiv:1607.01759", ("--shape", "ids:1x20", *IDS)),
        "nbeats": ("N-BEATS", "arXiv:1905.10437", ("--shape", "history:1x24")),
        "deepar": ("DeepAR", "arXiv:1704.04110", ("--shape", "series:1x24x3")),
    },
    "attention": {
        "transformer_encoder": (
            "Transformer encoder",
            "arXiv:1706.03762",
            (
                "--shape",
                "input_ids:1x16,attention_mask:1x16",
                "--max-shape",
                "input_ids:8x64,attention_mask:8x64",
                "--range",
                "input_ids=0:99",
                "--range",
                "attention_mask=0:1",
            ),
        ),
        "transformer": (
            "Transformer",
            "arXiv:1706.03762",
            ("--shape", "source:1x12,target:1x9", "--range", "source=0:99", "--range", "target=0:99"),
        ),
        "gpt": ("GPT", "Radford et al. 2018", ("--shape", "ids:1x16", "--max-shape", "ids:8x64", *IDS)),
        "llama": ("Llama", "arXiv:2302.13971", ("--shape", "ids:1x16", "--max-shape", "ids:8x64", *IDS)),
        "t5_encoder": ("T5 encoder", "arXiv:1910.10683", ("--shape", "ids:1x16", "--max-shape", "ids:8x64", *IDS)),
        "alibi": ("ALiBi transformer", "arXiv:2108.12409", ("--shape", "ids:1x16", "--max-shape", "ids:8x64", *IDS)),
        "vit": ("ViT", "arXiv:2010.11929", X),
        "mlp_mixer": ("MLP-Mixer", "arXiv:2105.01601", X),
        "gmlp": ("gMLP", "arXiv:2105.08050", X),
        "swin": ("Swin", "arXiv:2103.14030", X),
        "linear_transformer": ("Linear transformer", "arXiv:2006.16236", ("--shape", "ids:1x16", *IDS)),
        "fnet": ("FNet", "arXiv:2105.03824", ("--shape", "ids:1x16", *IDS)),
        "linformer": ("Linformer", "arXiv:2006.04768", ("--shape", "ids:1x32", *IDS)),
        "mixture_of_experts": ("Mixture of experts", "arXiv:1701.06538", ("--shape", "ids:1x16", *IDS)),
        "retnet": ("RetNet", "arXiv:2307.08621", ("--shape", "ids:1x16", "--max-shape", "ids:8x64", *IDS)),
        "mamba": ("Mamba", "arXiv:2312.00752", ("--shape", "ids:1x16", *IDS)),
        "rwkv": ("RWKV", "arXiv:2305.13048", ("--shape", "ids:1x16", *IDS)),
        "s4": ("S4", "arXiv:2206.11893", ("--shape", "ids:1x16", *IDS)),
        "perceiver": ("Perceiver", "arXiv:2103.03206", ("--shape", "x:1x50x6", "--max-shape", "x:4x100x6")),
        "detr": ("DETR", "arXiv:2005.12872", X),
        "clip": (
            "CLIP",
            "arXiv:2103.00020",
            ("--shape", "images:1x3x32x32,ids:1x8", *IDS),
        ),
        "patchtst": ("PatchTST", "arXiv:2211.14730", ("--shape", "series:1x32x3")),
        "sasrec": (
            "SASRec",
            "arXiv:1808.09781",
            ("--shape", "history:1x20,candidates:1x5", "--range", "history=0:99", "--range", "candidates=1:99"),
        ),
    },
    "generative": {
        "autoencoder": ("Convolutional autoencoder", "Masci et al. 2011", ("--shape", "input:1x1x32x32")),
        "vae": ("VAE", "arXiv:1312.6114", ("--shape", "x:1x64")),
        "vq_vae": ("VQ-VAE", "arXiv:1711.00937", ("--shape", "x:1x3x32x32")),
        "dcgan": ("DCGAN generator", "arXiv:1511.06434", ("--shape", "input:1x16")),
        "stylegan": ("StyleGAN2 generator", "arXiv:1912.04958", ("--shape", "z:1x16")),
        "pix2pix": ("pix2pix generator", "arXiv:1611.07004", ("--shape", "x:1x3x32x32")),
        "cyclegan": ("CycleGAN generator", "arXiv:1703.10593", ("--shape", "input:1x3x32x32")),
        "ddpm_unet": (
            "Diffusion U-Net",
            "arXiv:2006.11239",
            ("--shape", "sample:1x3x16x16,timestep:1", "--range", "timestep=0:999"),
        ),
        "dit": ("DiT", "arXiv:2212.09748", ("--shape", "latent:1x4x8x8,t:1x1")),
        "realnvp": ("RealNVP", "arXiv:1605.08803", ("--shape", "x:1x6")),
        "made": ("MADE", "arXiv:1502.03509", ("--shape", "x:1x8")),
        "pixelcnn": ("PixelCNN", "arXiv:1601.06759", ("--shape", "input:1x1x16x16")),
        "nerf": ("NeRF", "arXiv:2003.08934", ("--shape", "points:64x3,directions:64x3")),
        "siren": ("SIREN", "arXiv:2006.09661", ("--shape", "xy:64x2")),
    },
    "tabular": {
        "mlp": ("MLP", "Rumelhart et al. 1986", ("--shape", "input:1x16")),
        "self_normalising": ("Self-normalising network", "arXiv:1706.02515", ("--shape", "input:1x16")),
        "tabular_resnet": ("Tabular ResNet", "arXiv:2106.11959", ("--shape", "x:1x16")),
        "wide_and_deep": (
            "Wide & Deep",
            "arXiv:1606.07792",
            ("--shape", "numbers:1x10,ids:1x4", "--range", "ids=0:49"),
        ),
        "deepfm": ("DeepFM", "arXiv:1703.04247", ("--shape", "ids:1x5", "--range", "ids=0:49")),
        "deep_cross": ("Deep & Cross", "arXiv:2008.13535", ("--shape", "x:1x16")),
        "dlrm": (
            "DLRM",
            "arXiv:1906.00091",
            (
                "--shape",
                "dense:1x13,first:1,second:1,third:1",
                "--range",
                "first=0:49",
                "--range",
                "second=0:49",
                "--range",
                "third=0:49",
            ),
        ),
        "neural_collaborative": (
            "Neural collaborative filtering",
            "arXiv:1708.05031",
            ("--shape", "user:1,item:1", "--range", "user=0:49", "--range", "item=0:49"),
        ),
        "autoint": ("AutoInt", "arXiv:1810.11921", ("--shape", "ids:1x5", "--range", "ids=0:49")),
        "tabnet": ("TabNet", "arXiv:1908.07442", ("--shape", "x:1x16")),
        "soft_trees": ("NODE", "arXiv:1909.06312", ("--shape", "x:1x16")),
        "ft_transformer": ("FT-Transformer", "arXiv:2106.11959", ("--shape", "x:1x8")),
        "dueling_dqn": ("Dueling DQN", "arXiv:1511.06581", ("--shape", "frames:1x4x44x44")),
        "actor_critic": ("Actor-critic", "arXiv:1602.01783", ("--shape", "observation:1x8")),
    },
    "sound": {
        "m5": ("M5", "arXiv:1610.00087", ("--shape", "input:1x1x2048")),
        "wav2vec": ("wav2vec 2.0", "arXiv:2006.11477", ("--shape", "wave:1x1600")),
        "wavenet": ("WaveNet", "arXiv:1609.03499", ("--shape", "wave:1x1x256")),
        "deepspeech2": ("Deep Speech 2", "arXiv:1512.02595", ("--shape", "spectrogram:1x40x60")),
        "quartznet": (
            "QuartzNet",
            "arXiv:1910.10261",
            ("--shape", "spectrogram:1x40x64", "--max-shape", "spectrogram:8x40x128"),
        ),
        "conformer": (
            "Conformer",
            "arXiv:2005.08100",
            ("--shape", "features:1x30x40", "--max-shape", "features:8x60x40"),
        ),
        "x_vector": (
            "x-vector",
            "Snyder et al. 2018",
            ("--shape", "features:1x50x24", "--max-shape", "features:8x80x24"),
        ),
        "ecapa_tdnn": ("ECAPA-TDNN", "arXiv:2005.07143", ("--shape", "features:1x50x24")),
        "conv_tasnet": ("Conv-TasNet", "arXiv:1809.07454", ("--shape", "wave:1x1x800")),
        "demucs": ("Demucs", "arXiv:1911.13254", ("--shape", "wave:1x1x256")),
        "hifigan": ("HiFi-GAN generator", "arXiv:2010.05646", ("--shape", "mel:1x20x32", "--max-shape", "mel:4x20x64")),
        "crepe": ("CREPE", "arXiv:1802.06182", ("--shape", "frame:1x1024")),
        "keyword_spotting": ("DS-CNN", "arXiv:1711.07128, with the spectrogram inside", ("--shape", "wave:1x4000")),
        "voice_activity": ("Streaming voice activity", "chunk and state", ("--shape", "chunk:1x512,state:2x1x16")),
        "fastspeech": ("FastSpeech", "arXiv:1905.09263", ("--shape", "phonemes:1x12", "--range", "phonemes=0:39")),
    },
    "graphs": {
        "gcn": ("GCN", "arXiv:1609.02907", ()),
        "gat": ("GAT", "arXiv:1710.10903", ()),
        "graphsage": ("GraphSAGE", "arXiv:1706.02216", ()),
        "gin": ("GIN", "arXiv:1810.00826", ()),
        "mpnn": ("MPNN", "arXiv:1704.01212", ()),
        "dgcnn": ("DGCNN", "arXiv:1801.07829", ("--shape", "points:1x20x3")),
        "pointnet": ("PointNet", "arXiv:1612.00593", ("--shape", "points:1x3x32")),
        "deep_sets": ("Deep Sets", "arXiv:1703.06114", ()),
        "set_transformer": ("Set Transformer", "arXiv:1810.00825", ("--shape", "items:1x10x4")),
        "schnet": ("SchNet", "arXiv:1706.08566", ()),
    },
}
"""File → name → architecture, paper and arguments."""

FORMS = {
    "scripted": ("MLP", "torch.jit.script"),
    "traced": ("Small CNN", "torch.jit.trace"),
    "compiled": ("MLP", "torch.compile"),
    "data_parallel": ("Small CNN", "nn.DataParallel"),
    "half": ("MLP", "FP16 weights"),
    "bfloat16": ("MLP", "BF16 weights"),
    "double": ("MLP", "float64 weights"),
    "double_samples": ("MLP", "float64 samples, float32 weights"),
    "list_of_samples": ("MLP", "a list of samples"),
    "one_row": ("MLP", "1-D input, no batch"),
    "tuple_argument": ("MLP", "a tuple of tensors as one argument"),
    "list_argument": ("MLP", "a list of tensors in and out"),
    "nested_dicts": ("MLP", "nested dicts in and out"),
    "nested_output": ("MLP", "a dict inside a tuple out"),
    "optional_left_out": ("MLP", "an optional input, left out"),
    "optional_given": ("MLP", "an optional input, given"),
    "keywords": ("MLP", "forward(**inputs)"),
    "starred": ("MLP", "forward(*inputs)"),
    "dataclass_output": ("MLP", "a dataclass out"),
    "namedtuple_output": ("MLP", "a named tuple out"),
    "model_output": ("MLP", "a transformers ModelOutput out"),
    "scalar_output": ("MLP", "a rank-0 output"),
    "scalar_input": ("MLP", "a rank-0 input"),
    "decisions": ("MLP", "integers and booleans out"),
    "data_dependent_shape": ("MLP", "an output whose length depends on values"),
    "custom_function": ("Binarised network", "autograd.Function"),
    "parametrised": ("MLP", "spectral_norm and weight_norm"),
    "shared_weights": ("MLP", "one layer used three times"),
    "hooked": ("MLP", "a forward hook"),
    "remembers": ("MLP", "keeps Python state, reads sizes"),
    "ensemble": ("Ensemble by vmap", "torch.func"),
    "hashed_ids": ("Hashed embedding", "ids beyond INT32"),
    "byte_pictures": ("Small CNN", "uint8 pictures, channels last"),
}
HOPELESS = {
    "dynamically_quantised": ("MLP", "quantize_dynamic"),
    "tied_shapes": ("MLP", "two inputs tied in shape"),
    "dropout_left_on": ("MLP", "dropout left on"),
    "changing_buffer": ("MLP", "a buffer that changes with each call"),
    "data_dependent": ("MLP", "control flow that depends on values"),
    "bare_module": ("MLP", "neither samples nor shapes"),
}


def _written(name: str, writer: str, *more: object) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        from benchmarks.compatibility.models import forms

        getattr(forms, writer)(str(folder / name), *more)
        return str(folder / name)

    return make


def _sources() -> Iterator[Source]:
    for name, (what, paper) in CNN.items():
        yield Source(f"torch/{name}", "torch", what, paper, factory("cnn", name), PICTURE)
    for file, models in OTHERS.items():
        for name, (what, paper, arguments) in models.items():
            yield Source(f"torch/{name}", "torch", what, paper, factory(file, name), arguments)
    for name, (what, how) in FORMS.items():
        yield Source(f"torch/form-{name}", "torch", what, how, factory("forms", name))
    for name, (what, how) in HOPELESS.items():
        yield Source(f"torch/form-{name}", "torch", what, how, factory("forms", name), wants="message")
    shape = ("--shape", "input:1x3x32x32")
    for suffix in ("pt", "jit"):
        make = _written(f"traced.{suffix}", "write_torchscript")
        yield Source(f"torch/file-{suffix}", "torch", "Small CNN", f"a TorchScript file (.{suffix})", make, shape)
    shape = ("--shape", "x:1x512")
    make = installed("silero-vad", "silero_vad/data/silero_vad.jit")
    what = "silero-vad, silero_vad.jit: takes a number, keeps state"
    yield Source("torch/silero-vad", "torch", "Silero VAD", what, make, shape, wants="message")
    make = _written("state.pth", "write_state_dict")
    yield Source("torch/file-state-dict", "torch", "MLP", "weights without a network", make, wants="message")
    for name, dynamic in (("static", False), ("dynamic", True)):
        make = _written(f"{name}.pt2", "write_exported", dynamic)
        yield Source(f"torch/file-{name}-pt2", "torch", "MLP", f"torch.export, {name} batch", make)


SOURCES = checked(_sources())
