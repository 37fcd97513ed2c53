#!/usr/bin/env python3
"""Trains a small tokenizer of each kind and writes the Python packages' results for hard strings.

    make_tokenizer_goldens.py --text FOLDER [--text FOLDER ...] [--out tests/data/tokenizer]
    make_tokenizer_goldens.py --text FOLDER --kind gemma3
    make_tokenizer_goldens.py --goldens-only

FOLDERs hold public-domain texts (*.txt, searched recursively). Needs the packages tokenizers and sentencepiece; the
committed files were made with 0.23.3 and 0.2.3 from 19th-century English and German books. Takes a minute. The patterns
are those of the published models. `--goldens-only` keeps the tokenizers and rewrites only their goldens.
"""

import argparse
import json
import pathlib
import random
import shutil
import tempfile

import tokenizer_reference as reference
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS +
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS +
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

HARD_STRINGS = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r\n", "\t\t", " \t \n \r\n  x", "a", " a", "a ", "  a  ", "\u3000",
    "Hello, world!", "Hello  world", "Hello   world\n\n\nBye.", "It was the best of times, it was the worst of times,",
    "I'm you're he's we've they'll she'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL SHE'D DON'T", "'s 't 'S 'ſ ’s ’t",
    "It’s “quoted” — with dashes – and… ellipsis", "1 12 123 1234 12345 1234567890", "3.14159, 1,000,000 and 50%",
    "x=1;y=2;//comment\n\tif (x<y) { return x+++y; }", "!!!???...", "a.b,c;d:e", "$€£¥", "½ ² Ⅷ ٣ ৪ 四", "_under_score_",
    "Die Verwandlung: Gregor Samsa, großes Übel, ÄÖÜ äöü ß", "naïve café résumé", "nai\u0308ve cafe\u0301 re\u0301sume\u0301",
    "e\u0301\u0323 e\u0323\u0301 \u0344 \u212b \u2126 \ufb01", "\u1100\u1161\u11a8 각 \uac00\u11a8", "漢字とひらがなカタカナ", "中文没有空格", "한국어 텍스트",
    "Привет, мир", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "😀", "😀😃😄", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷", "e\u200b\u200d\u2060x",
    "a\u00a0b\u2003c\u2028d\u2029e\u0085f\u180eg\u1680h", "\u180e\u180e", "\ufeffBOM", "\ufffd \ufffe", "\U0001d518\U0001d52b\U0001d526", "\u0000", "a\u0000b", "\x7f\x1b[0m",
    "▁", "▁▁a", "a▁b", " ▁ ", "Ġ", "Ġhello", "Ċ", "<0x0A>", "<0x41><0xZZ>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the the", "thethethethethethethethethethethethethethethethethethe", " " * 40, "\n" * 20, "-" * 70, "ab" * 60, "<s>", "</s>", "<s> Hello</s>",
    "<s><s>", " <s> ", "<unk>", "<pad>", "<|begin_of_text|>Hi<|end_of_text|>", "<|begin_of_text|", "a <|im_start|> user\nHi <|im_end|>\n",
    "<tool_call> x </tool_call>", "x <mask> y", "x<mask>y", " wordy word sword words word.", "İstanbul ı I", "ǅ ǆ ŉ", "\u0378", "\ue000 \U000f0000",
]

# What only these families have: tokens of white space, casing in the split pattern, tokens that swallow white space.
FAMILY_STRINGS = {
    "gemma3": [
        "<start_of_turn>user\nHi<end_of_turn>\n\n<start_of_turn>model\n", "a\n\n\n\n\n\n\n\nb", "a\t\t\t\tb", "\t",
        "      x", "\u2581\u2581\u2581\u2581 \u2581x", "<table><b>x</b></table>", "<b", "<bos>", " <bos> x",
        "\n \n  \n\t\n",
    ],
    "tekken": [
        "camelCaseHTTPServer", "ABCdef ABC def XMLHttpRequest", "\u01c5abc \u02b0A \u05d0a", "a//\n/b", "://x/\r\n/y",
        "A\u0301B\u0301c\u0301", "<s>[INST] Hi [/INST]Ja.</s>", "[INST", "[/INST][INST]", "1234\n\n5",
        "<SPECIAL_9>x<SPECIAL_99>",
    ],
    "gpt-oss": [
        "camelCaseHTTPServer's", "ABC'S def'Ll GHI'ſ x're'VE", "\u01c5's \u02b0A \u05d0a'm", "a//\n/b", "1234567 12",
        "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|return|>", "<|start|", "x <|end|> y",
    ],
    "phi4": [
        "<|im_start|> user <|im_sep|>\n\nHi  <|im_end|> \t<|im_start|>", " <|im_sep|>", "a <|im_sep|> \u3000 b",
        "12345678 1234",
    ],
}


def strings(kind):
    """The hard strings, random mixtures of them, and those of the kind."""
    rng = random.Random(17)
    mixed = ["".join(rng.choice(HARD_STRINGS) for _ in range(4)) for _ in range(30)]
    return HARD_STRINGS + mixed + FAMILY_STRINGS.get(kind, [])


def id_rows(size):
    """Rows of ids that no text encodes to: halves of characters, special tokens anywhere."""
    rng = random.Random(18)
    return [[rng.randrange(size) for _ in range(rng.randrange(1, 9))] for _ in range(60)] + \
        [[rng.randrange(min(size, 300)) for _ in range(rng.randrange(1, 9))] for _ in range(60)]


def write_goldens(folder):
    judge = reference.load(folder)
    goldens = {"encode": [], "decode": []}
    for text in strings(folder.name):
        ids = judge.encode(text)
        goldens["encode"].append([text, ids, judge.decode(ids, False)])
    for ids in id_rows(judge.vocab_size()):
        goldens["decode"].append([ids, judge.decode(ids, True), judge.decode(ids, False)])
    dump = lambda case: json.dumps(case, separators=(",", ":"), ensure_ascii=False)
    parts = [f'"{key}": [\n' + ",\n".join(map(dump, cases)) + "\n]" for key, cases in goldens.items()]
    (folder / "goldens.json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")  # one case per line


def save(tokenizer, folder, config):
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def train(tokenizer, texts, vocab_size):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)


def special(*names):
    return [AddedToken(name, normalized=False, special=True) for name in names]


def split_byte_level(pattern):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def make_llama3(texts, folder):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_byte_level(LLAMA3)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, texts, 1400)
    tokenizer.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B:1", special_tokens=[bos]),
    ])
    save(tokenizer, folder, {"bos_token": bos[0], "eos_token": "<|end_of_text|>"})


def make_qwen2(texts, folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_byte_level(QWEN2)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    train(tokenizer, texts, 1300)
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    save(tokenizer, folder, {"bos_token": None, "add_bos_token": False, "eos_token": "<|im_end|>"})


def make_tekken(texts, folder):
    """Mistral NeMo and Small: the special tokens come first, tokens for every use that the model has none for yet."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_byte_level(TEKKEN)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"] + [f"<SPECIAL_{i}>" for i in range(6, 10)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=names, show_progress=False))
    tokenizer.add_special_tokens(special(*names))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    save(tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>", "add_prefix_space": False})


def make_gpt_oss(texts, folder):
    """gpt-oss: o200k_harmony, whose special tokens come last."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_byte_level(O200K)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(special(*(f"<|{name}|>" for name in (
        "startoftext", "endoftext", "return", "constrain", "channel", "start", "end", "message", "call"))))
    save(tokenizer, folder, {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"})


def make_phi4(texts, folder):
    """Special tokens swallow the white space around them. The pattern repeats an interval, as no other here does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_byte_level(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}{1,3}+"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    train(tokenizer, texts, 600)
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>")
    tokenizer.add_special_tokens(
        [AddedToken(name, lstrip=True, rstrip=True, normalized=False, special=True) for name in names])
    save(tokenizer, folder, {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_prefix_space": False})


def runs(character, count):
    return [character * n for n in range(1, count + 1)]


def make_gemma3(texts, folder):
    """Gemma: no space is put before the text, and runs of white space are tokens, whole (added) and merged. As in
    Gemma 1 and 2, the tab has the place of its byte token."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    words.train_from_iterator((line for text in texts for line in text.splitlines()),
                              trainers.BpeTrainer(vocab_size=650, limit_alphabet=90, show_progress=False))
    trained = json.loads(words.to_str())["model"]
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    added = runs("\n", 5) + runs("\u2581", 5)[1:] + ["<table>", "</table>", "<b>", "</b>"]
    byte_tokens = [f"<0x{byte:02X}>" if byte != 9 else "\t" for byte in range(256)]
    tokens = control + added + byte_tokens + sorted(trained["vocab"], key=trained["vocab"].get) + runs("\t", 4)[1:]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    merges = [(run[:at], run[at:]) for c, n in (("\n", 5), ("\u2581", 5), ("\t", 4)) for run in runs(c, n)
              for at in range(1, len(run))]
    merges += [tuple(pair) for pair in trained["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special(*control))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added + runs("\t", 4)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B:1", special_tokens=[("<bos>", vocab["<bos>"])])
    save(tokenizer, folder, {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True})


def make_gpt2(texts, folder):
    """Also has added tokens with every option, which GPT-2 does not have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, texts, 1000)
    tokenizer.add_special_tokens(special("<|endoftext|>") + [AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("...", rstrip=True), AddedToken("é")])
    save(tokenizer, folder, {"bos_token": "<|endoftext|>"})


def make_opt(texts, folder):
    """Only vocab.json and merges.txt; the special tokens are in the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=names, show_progress=False))
    folder.mkdir(parents=True)
    tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>", "add_bos_token": True,
         "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"}, indent=2) + "\n")


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def make_sentencepiece_kinds(texts, folder):
    """A SentencePiece model, and beside its folder the two tokenizer.json forms of it."""
    import sentencepiece

    with tempfile.TemporaryDirectory() as temporary:
        prefix = pathlib.Path(temporary) / "tokenizer"
        lines = (line for text in texts for line in text.splitlines() if line.strip())
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines, model_prefix=str(prefix), model_type="bpe", vocab_size=1300, byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True,
            character_coverage=0.9995, split_digits=True, allow_whitespace_only_pieces=True, max_sentence_length=100000,
            minloglevel=2)
        folder.mkdir(parents=True)
        shutil.copy(str(prefix) + ".model", folder / "tokenizer.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    config = {"bos_token": "<s>", "add_bos_token": True, "add_eos_token": False}
    for name, metaspace in (("llama2", False), ("llama2-metaspace", True)):
        save(reference.llama2_tokenizer(processor, metaspace), fresh(folder.parent / name), config)


def read_texts(folders, bytes_each=150_000):
    paths = sorted(path for folder in folders for path in pathlib.Path(folder).rglob("*.txt"))
    return [path.read_bytes()[:bytes_each].decode("utf-8", "ignore") for path in paths]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="append", default=[], help="folder of public-domain texts (repeatable)")
    parser.add_argument("--out", default=pathlib.Path(__file__).parent.parent / "data" / "tokenizer", type=pathlib.Path)
    parser.add_argument("--kind", action="append", help="make only this tokenizer (repeatable)")
    parser.add_argument("--goldens-only", action="store_true", help="keep the tokenizers, write their goldens anew")
    options = parser.parse_args()
    makers = {"llama3": make_llama3, "qwen2": make_qwen2, "gpt2": make_gpt2, "opt": make_opt, "tekken": make_tekken, "gpt-oss": make_gpt_oss,
              "phi4": make_phi4, "gemma3": make_gemma3, "sentencepiece": make_sentencepiece_kinds}
    if not options.goldens_only:
        texts = read_texts(options.text)
        if not texts:
            parser.error("no *.txt in the folders of --text")
        for kind in options.kind or makers:
            makers[kind](texts, fresh(options.out / kind))
    for folder in sorted(path for path in options.out.iterdir() if path.is_dir()):
        write_goldens(folder)


if __name__ == "__main__":
    main()
