"""The tokenizers of tests/data/tokenizer as the Python packages read them: the reference for the C++ code."""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def read_config(folder):
    path = pathlib.Path(folder) / "tokenizer_config.json"
    return json.loads(path.read_text()) if path.exists() else {}


def bos_of(config, id_of):
    return [id_of(config["bos_token"])] if config.get("add_bos_token") else []


class JsonReference:
    """tokenizer.json, by the tokenizers package; tokenizer_config.json may say whether a text gets a bos_token."""

    def __init__(self, tokenizer, folder):
        self.tokenizer = tokenizer
        self.config = read_config(folder)

    def before_text(self):
        ids = self.tokenizer.encode("", add_special_tokens=True).ids
        return bos_of(self.config, self.tokenizer.token_to_id) if "add_bos_token" in self.config else ids

    def added_tokens(self):
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip_special):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special)

    def vocab_size(self):
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1


class SentencePieceReference:
    """tokenizer.model: ids by the sentencepiece package, text by the decoder of Llama 2's tokenizer.json."""

    def __init__(self, folder):
        import sentencepiece

        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        self.tokenizer = llama2_tokenizer(self.processor)
        self.config = read_config(folder)

    def before_text(self):
        bos = {"bos_token": self.processor.id_to_piece(self.processor.bos_id()), "add_bos_token": True}
        return bos_of({**bos, **self.config}, self.processor.piece_to_id)

    def added_tokens(self):
        return [self.processor.id_to_piece(i) for i in range(self.vocab_size()) if self.processor.is_control(i)]

    def encode(self, text):
        return self.processor.encode(text)

    def decode(self, ids, skip_special):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special)

    def vocab_size(self):
        return self.processor.get_piece_size()


def llama2_tokenizer(processor, metaspace=False):
    """The tokenizer.json of a SentencePiece BPE model: Llama 2's form, or the newer form with Metaspace."""
    from tokenizers import normalizers

    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    normal = [
        i for i in range(len(pieces))
        if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i) or processor.is_unused(i))
    ]
    words = {pieces[i] for i in normal}
    merges = []
    for i in sorted(normal, key=lambda i: -processor.get_score(i)):
        piece = pieces[i]
        cuts = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        merges += sorted((cut for cut in cuts if cut[0] in words and cut[1] in words),
                         key=lambda cut: (vocab[cut[0]], vocab[cut[1]]))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    control = [pieces[i] for i in range(len(pieces)) if processor.is_control(i) or processor.is_unknown(i)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer


def gpt2_tokenizer(folder):
    """vocab.json and merges.txt, with the special tokens of tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = [config[key] for key in ("bos_token", "eos_token", "unk_token", "pad_token") if config.get(key)]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in dict.fromkeys(names)])
    return tokenizer


def load(folder):
    folder = pathlib.Path(folder)
    if (folder / "tokenizer.json").exists():
        return JsonReference(Tokenizer.from_file(str(folder / "tokenizer.json")), folder)
    if (folder / "vocab.json").exists():
        return JsonReference(gpt2_tokenizer(folder), folder)
    return SentencePieceReference(folder)
