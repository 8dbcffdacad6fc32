"""Hugging Face: a folder for each family of transformers, its config tiny and its weights random (seed 0)."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.compatibility.source import Source, checked

TEXT = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PICTURE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
DECODER = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
SPEECH = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
ROBERTA = {**TEXT, "max_position_embeddings": 66}
BART = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
WHISPER = {
    **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
    "num_mel_bins": 16,
    "max_source_positions": 50,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_labels": 5}
TOWERS = {"text_config": {**TEXT}, "vision_config": {**PICTURE}, "projection_dim": 16}
BACKBONE = {
    "backbone_config": {"model_type": "resnet", **STAGES, "out_features": ["stage4"]},
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "d_model": 32,
    "num_queries": 6,
    **{k: v for k, v in BART.items() if k.startswith(("encoder", "decoder"))},
}

FAMILIES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    # encoders of text
    "bert": ("BERT", "BertForSequenceClassification", TEXT),
    "bert-pretraining": ("BERT", "BertForMaskedLM", TEXT),
    "roberta": ("RoBERTa", "RobertaForSequenceClassification", ROBERTA),
    "roberta-64": ("RoBERTa", "RobertaModel", {**ROBERTA, "hidden_size": 64}),
    "distilbert": (
        "DistilBERT",
        "DistilBertForSequenceClassification",
        {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    "albert": ("ALBERT", "AlbertModel", {**TEXT, "embedding_size": 16, "hidden_size": 64}),
    "electra": ("ELECTRA", "ElectraForPreTraining", {**TEXT, "embedding_size": 16}),
    "mpnet": ("MPNet", "MPNetModel", {**ROBERTA, "hidden_size": 64}),
    "deberta": (
        "DeBERTa",
        "DebertaForSequenceClassification",
        {**TEXT, "pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    ),
    "deberta-v2": (
        "DeBERTa v2",
        "DebertaV2ForTokenClassification",
        {**TEXT, "pos_att_type": ["c2p", "p2c"], "relative_attention": True, "position_buckets": 16},
    ),
    "xlm-roberta": ("XLM-RoBERTa", "XLMRobertaForTokenClassification", ROBERTA),
    "camembert": ("CamemBERT", "CamembertForMaskedLM", ROBERTA),
    "mobilebert": (
        "MobileBERT",
        "MobileBertForSequenceClassification",
        {**TEXT, "embedding_size": 32, "intra_bottleneck_size": 16, "num_attention_heads": 2},
    ),
    "squeezebert": ("SqueezeBERT", "SqueezeBertModel", {**TEXT, "embedding_size": 32}),
    "funnel": (
        "Funnel",
        "FunnelForSequenceClassification",
        {
            "vocab_size": 100,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
            "num_decoder_layers": 1,
        },
    ),
    "longformer": ("Longformer", "LongformerModel", {**ROBERTA, "attention_window": 8}),
    "big-bird": (
        "BigBird",
        "BigBirdModel",
        {**TEXT, "block_size": 4, "num_random_blocks": 1, "attention_type": "original_full"},
    ),
    "big-bird-sparse": (
        "BigBird",
        "BigBirdModel",
        {
            **TEXT,
            "block_size": 4,
            "num_random_blocks": 1,
            "attention_type": "block_sparse",
            "max_position_embeddings": 128,
        },
    ),
    "nystromformer": ("Nyströmformer", "NystromformerModel", {**TEXT, "segment_means_seq_len": 64, "num_landmarks": 8}),
    "yoso": ("YOSO", "YosoModel", {**TEXT, "use_expectation": True, "max_position_embeddings": 66}),
    "convbert": ("ConvBERT", "ConvBertModel", {**TEXT, "embedding_size": 32, "conv_kernel_size": 3, "head_ratio": 2}),
    "fnet": ("FNet", "FNetModel", {k: v for k, v in TEXT.items() if k != "num_attention_heads"}),
    "layoutlm": ("LayoutLM", "LayoutLMModel", TEXT),
    "ibert": ("I-BERT", "IBertModel", ROBERTA),
    "rembert": ("RemBERT", "RemBertModel", {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16}),
    "roformer": ("RoFormer", "RoFormerModel", {**TEXT, "embedding_size": 32}),
    "megatron-bert": ("Megatron-BERT", "MegatronBertModel", TEXT),
    "xlm": (
        "XLM",
        "XLMModel",
        {"vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    "xlnet": ("XLNet", "XLNetModel", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    "flaubert": (
        "FlauBERT",
        "FlaubertModel",
        {"vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64},
    ),
    "ernie": ("ERNIE", "ErnieModel", TEXT),
    "luke": ("LUKE", "LukeModel", {**ROBERTA, "entity_vocab_size": 20, "entity_emb_size": 16}),
    "splinter": ("Splinter", "SplinterModel", TEXT),
    "canine": (
        "CANINE",
        "CanineModel",
        {**TEXT, "num_hash_buckets": 64, "local_transformer_stride": 32, "max_position_embeddings": 128},
    ),
    "data2vec-text": ("data2vec (text)", "Data2VecTextModel", ROBERTA),
    "modernbert": (
        "ModernBERT",
        "ModernBertModel",
        {**TEXT, "local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "esm": (
        "ESM-2",
        "EsmModel",
        {**ROBERTA, "position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": True},
    ),
    # decoders of text
    "gpt2": (
        "GPT-2",
        "GPT2LMHeadModel",
        {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "gpt-neo": (
        "GPT-Neo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
        },
    ),
    "gpt-neox": ("GPT-NeoX", "GPTNeoXForCausalLM", TEXT),
    "gptj": (
        "GPT-J",
        "GPTJForCausalLM",
        {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    ),
    "opt": ("OPT", "OPTForCausalLM", {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "bloom": ("BLOOM", "BloomForCausalLM", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("Llama", "LlamaForCausalLM", DECODER),
    "mistral": ("Mistral", "MistralForCausalLM", {**DECODER, "sliding_window": 16}),
    "mixtral": ("Mixtral", "MixtralForCausalLM", {**DECODER, "num_local_experts": 4}),
    "qwen2": ("Qwen2", "Qwen2ForCausalLM", DECODER),
    "qwen3": ("Qwen3", "Qwen3Model", DECODER),
    "gemma": ("Gemma", "GemmaForCausalLM", DECODER),
    "gemma2": ("Gemma 2", "Gemma2Model", {**DECODER, "sliding_window": 16}),
    "phi": ("Phi", "PhiForCausalLM", TEXT),
    "falcon": ("Falcon", "FalconForCausalLM", {**TEXT, "new_decoder_architecture": False}),
    "stablelm": ("StableLM", "StableLmForCausalLM", DECODER),
    "mamba": ("Mamba", "MambaModel", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4}),
    # encoder and decoder
    "t5": ("T5", "T5ForConditionalGeneration", T5),
    "t5-encoder": ("T5 encoder", "T5EncoderModel", T5),
    "mt5-encoder": ("mT5 encoder", "MT5EncoderModel", T5),
    "bart": ("BART", "BartForSequenceClassification", {**BART, "eos_token_id": 2}),
    "marian": ("Marian", "MarianMTModel", {**BART, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2}),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration", BART),
    # pictures
    "vit": ("ViT", "ViTForImageClassification", PICTURE),
    "deit": ("DeiT", "DeiTForImageClassification", PICTURE),
    "beit": ("BEiT", "BeitForImageClassification", PICTURE),
    "dinov2": ("DINOv2", "Dinov2Model", PICTURE),
    "vit-mae": ("ViT-MAE", "ViTMAEModel", {**PICTURE, "mask_ratio": 0.0}),
    "vit-msn": ("ViT-MSN", "ViTMSNModel", PICTURE),
    "yolos": ("YOLOS", "YolosForObjectDetection", {**PICTURE, "image_size": [32, 32], "num_detection_tokens": 5}),
    "dpt": (
        "DPT",
        "DPTForDepthEstimation",
        {
            **PICTURE,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8],
            "fusion_hidden_size": 8,
            "is_hybrid": False,
            "reassemble_factors": [4, 2, 1, 0.5],
        },
    ),
    "swin": (
        "Swin",
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "swinv2": (
        "Swin v2",
        "Swinv2ForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "convnext": (
        "ConvNeXt",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32, "num_labels": 5},
    ),
    "convnextv2": (
        "ConvNeXt v2",
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 32, "num_labels": 5},
    ),
    "segformer": (
        "SegFormer",
        "SegformerForSemanticSegmentation",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 16, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 16,
            "num_labels": 5,
        },
    ),
    "mobilevit": (
        "MobileViT",
        "MobileViTForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
            "num_attention_heads": 4,
            "num_labels": 5,
        },
    ),
    "mobilenet-v2": (
        "MobileNet v2",
        "MobileNetV2ForImageClassification",
        {"image_size": 64, "depth_multiplier": 0.25, "num_labels": 5},
    ),
    "efficientnet": (
        "EfficientNet",
        "EfficientNetForImageClassification",
        {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "num_labels": 5},
    ),
    "resnet": ("ResNet", "ResNetForImageClassification", STAGES),
    "regnet": ("RegNet", "RegNetForImageClassification", {**STAGES, "groups_width": 4}),
    "poolformer": (
        "PoolFormer",
        "PoolFormerForImageClassification",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "image_size": 64, "num_labels": 5},
    ),
    "levit": (
        "LeViT",
        "LevitForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "num_labels": 5,
        },
    ),
    "cvt": (
        "CvT",
        "CvtForImageClassification",
        {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3], "num_labels": 5},
    ),
    "pvt": (
        "PVT",
        "PvtForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
            "num_labels": 5,
        },
    ),
    "focalnet": (
        "FocalNet",
        "FocalNetForImageClassification",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "focal_levels": [1, 1],
            "focal_windows": [3, 3],
            "num_labels": 5,
        },
    ),
    "bit": ("BiT", "BitForImageClassification", {**STAGES, "num_groups": 4}),
    "detr": ("DETR", "DetrForObjectDetection", BACKBONE),
    "table-transformer": ("Table transformer", "TableTransformerForObjectDetection", BACKBONE),
    "superpoint": (
        "SuperPoint",
        "SuperPointForKeypointDetection",
        {"encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "descriptor_decoder_dim": 16},
    ),
    # sound
    "wav2vec2": ("wav2vec 2.0", "Wav2Vec2ForCTC", SPEECH),
    "hubert": ("HuBERT", "HubertModel", SPEECH),
    "wavlm": ("WavLM", "WavLMModel", SPEECH),
    "data2vec-audio": (
        "data2vec (audio)",
        "Data2VecAudioModel",
        {**SPEECH, "num_conv_pos_embeddings": 2, "conv_pos_kernel_size": 3},
    ),
    "sew": ("SEW", "SEWModel", {**SPEECH, "squeeze_factor": 2}),
    "whisper": ("Whisper", "WhisperForConditionalGeneration", WHISPER),
    "ast": (
        "AST",
        "ASTForAudioClassification",
        {
            **{k: v for k, v in PICTURE.items() if k != "image_size"},
            "max_length": 64,
            "num_mel_bins": 32,
            "frequency_stride": 8,
            "time_stride": 8,
        },
    ),
    "encodec": (
        "EnCodec",
        "EncodecModel",
        {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 2], "codebook_size": 32, "codebook_dim": 16},
    ),
    # two towers, time series, tables
    "clip": ("CLIP", "CLIPModel", TOWERS),
    "clip-vision": ("CLIP vision tower", "CLIPVisionModelWithProjection", {**PICTURE, "projection_dim": 16}),
    "clip-text": ("CLIP text tower", "CLIPTextModelWithProjection", {**TEXT, "projection_dim": 16}),
    "siglip": ("SigLIP", "SiglipModel", {"text_config": {**TEXT}, "vision_config": {**PICTURE}}),
    "vilt": ("ViLT", "ViltModel", {**TEXT, **PICTURE}),
    "patchtst": (
        "PatchTST",
        "PatchTSTForPrediction",
        {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "prediction_length": 8,
        },
    ),
    "decision-transformer": (
        "Decision transformer",
        "DecisionTransformerModel",
        {"state_dim": 4, "act_dim": 2, "hidden_size": 32, "n_layer": 1, "n_head": 2, "max_ep_len": 64},
    ),
}
"""Name → architecture, class and config."""

ARGUMENTS = {
    "nystromformer": ("--min-shape", "input_ids:1x64", "--shape", "input_ids:1x64"),
    "big-bird-sparse": ("--min-shape", "input_ids:1x128", "--shape", "input_ids:1x128"),
}
"""Families that take one length only, as their documentation says."""
WORDS = [f"w{i}" for i in range(90)]


def write(folder: Path, name: str) -> None:
    """Write the family's folder: config and random weights."""
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    _, class_name, values = FAMILIES[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model_class(model_class.config_class(**values)).save_pretrained(folder)


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of a hundred words beside a text model."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = {word: i for i, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64}))


def write_sentence_transformer(folder: Path) -> None:
    """Write BERT as sentence-transformers does: pooling and normalisation stand in modules.json."""
    write(folder, "bert-pretraining")
    write_tokenizer(folder)
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def write_pickle(folder: Path) -> None:
    """Write BERT with pytorch_model.bin instead of safetensors."""
    import torch
    from safetensors.torch import load_file

    write(folder, "bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def write_half(folder: Path) -> None:
    """Write BERT with FP16 weights."""
    import transformers

    write(folder, "bert")
    transformers.BertForSequenceClassification.from_pretrained(folder).half().save_pretrained(folder)


def write_tokenized(folder: Path) -> None:
    write(folder, "distilbert")
    write_tokenizer(folder)


def _make(writer: Callable[..., None], *more: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        model = folder / "model"
        model.mkdir()
        writer(model, *more)
        return str(model)

    return make


def _sources() -> Iterator[Source]:
    for name, (what, class_name, _) in FAMILIES.items():
        make, origin = _make(write, name), f"transformers {class_name}"
        yield Source(f"huggingface/{name}", "huggingface", what, origin, make, ARGUMENTS.get(name, ()))
    forms = {
        "sentence-transformers": ("BERT", "a folder of sentence-transformers", write_sentence_transformer),
        "tokenizer": ("DistilBERT", "with its tokenizer", write_tokenized),
        "half": ("BERT", "FP16 weights", write_half),
    }
    for name, (what, how, writer) in forms.items():
        yield Source(f"huggingface/form-{name}", "huggingface", what, how, _make(writer))
    make = _make(write_pickle)
    yield Source("huggingface/form-pickle", "huggingface", "BERT", "pytorch_model.bin only", make, wants="message")


SOURCES = checked(_sources())
