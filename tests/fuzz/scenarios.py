"""Valid commands of every verb, the options that fit each, and valid values by option."""

from __future__ import annotations

from dataclasses import dataclass

TEXT = "the cat sees the dog ."
MASKED = "the <mask> sees the dog ."


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Arguments that execute, and options that may be added to them."""

    arguments: tuple[str, ...]
    options: tuple[str, ...] = ()
    stdin: str = ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _train(system: str, corpus: str = "{world}/corpus.txt", *, more: str = "") -> Scenario:
    arguments = ("--data", corpus, "--out", "{out}", "--size", "tiny", "--steps", "1")
    options = _words("--set --tokenizer --seed --errors")
    return Scenario(arguments=(system, *arguments), options=(*options, *_words(more)))


DECODING = _words("-n --prefix --max-length --seed --json")
CHAINS = _words(
    "-n --steps --burn-in --chains --masks --order --temperature --anneal --seed --json --draw"
)
SCORING = _words("--per-token --per-word --json --window --stride --errors")
TRANSLATING = _words("--max-length --seed --json --n-best")

NEVER = frozenset({"--compile", "--minutes", "--out", "--help", "--no-verify", "--yes"})
"""Options that are not sampled: a compiler, the clock, and what would write elsewhere or delete."""

SCENARIOS: dict[str, tuple[Scenario, ...]] = {
    "systems": (Scenario(arguments=(), options=("--json",)),),
    "find": tuple(Scenario(arguments=(word,)) for word in ("lstm", "attention", "nce", "bert")),
    "demo": (Scenario(arguments=("--help",)),),
    "serve": (Scenario(arguments=("--help",)),),
    "runs list": tuple(
        Scenario(arguments=(folder,), options=_words("--where --sort --columns --json --rebuild"))
        for folder in ("{world}", "{world}/lstm")
    ),
    "runs show": tuple(
        Scenario(arguments=("{world}/" + run,), options=("--json",))
        for run in ("lstm", "ngram", "classifier")
    ),
    "runs diff": (Scenario(arguments=("{world}/lstm", "{world}/gpt"), options=("--json",)),),
    "runs tag": (Scenario(arguments=("{world}/ngram", "word"), options=("--remove",)),),
    "runs rm": (Scenario(arguments=("{world}/ngram", "--folder", "{out}")),),
    "data list": (Scenario(arguments=(), options=("--json",)),),
    "data describe": tuple(
        Scenario(arguments=(corpus,), options=_words("--json --tokenizer --errors"))
        for corpus in (
            *("{world}/corpus.txt", "{world}/corpus.txt.gz", "{world}/corpus.jsonl"),
            *("{world}/pairs.tsv", "{world}/seqs.fasta", "ptb-sentence:{world}/ptb"),
            *("babi-1:{world}/babi", "multi30k-de-en:{world}/multi30k", "capitals"),
        )
    ),
    "train": (
        _train("ngram", more="--json"),
        _train("lstm", more="--objective"),
        _train("gpt"),
        _train("bert"),
        _train("hmm"),
        _train("lstm", "ptb-contiguous:{world}/ptb"),
        _train("seq2seq", "{world}/pairs.tsv", more="--source-tokenizer"),
    ),
    "score": (
        Scenario(arguments=("{world}/lstm", "--text", TEXT), options=SCORING),
        Scenario(arguments=("{world}/ngram", "{world}/corpus.txt"), options=SCORING),
        Scenario(arguments=("{world}/gpt", "-"), options=SCORING, stdin=TEXT),
        Scenario(arguments=("{world}/bert", "--text", TEXT), options=("--method", "--json")),
        Scenario(
            arguments=("{world}/gpt", "--given", "the cat", "--text", "sees"),
            options=_words("--end --json --separator --per-token --mean"),
        ),
        Scenario(
            arguments=("{world}/seq2seq", "--source", TEXT, "--text", "THE CAT"),
            options=_words("--json --per-token"),
        ),
    ),
    "sample": (
        Scenario(
            arguments=("{world}/lstm",), options=(*DECODING, *_words("--temperature --top-k"))
        ),
        Scenario(arguments=("{world}/gpt",), options=(*DECODING, "--top-p")),
        Scenario(arguments=("{world}/ngram", "--method", "greedy"), options=DECODING),
        Scenario(
            arguments=("{world}/lstm", "--method", "beam"),
            options=(*DECODING, "--beam", "--length-penalty"),
        ),
        Scenario(
            arguments=("{world}/bert", "--method", "gibbs", "--template", MASKED, "--steps", "6"),
            options=tuple(each for each in CHAINS if each != "--steps"),
        ),
        Scenario(
            arguments=("{world}/hmm", "--method", "metropolis", "--text", TEXT, "--steps", "6"),
            options=(*_words("-n --chains --order --temperature --seed --json --proposal"),),
        ),
    ),
    "fill": (
        Scenario(
            arguments=("{world}/bert", MASKED),
            options=_words("--top --joint --among --beam --json --errors"),
        ),
        Scenario(arguments=("{world}/hmm", MASKED), options=_words("--top --joint --json --beam")),
        Scenario(
            arguments=("{world}/t5", MASKED),
            options=_words("--top --sample --seed --beam --max-length --json"),
        ),
    ),
    "translate": (
        Scenario(
            arguments=("{world}/seq2seq", "--text", TEXT),
            options=(*TRANSLATING, *_words("--beam --length-penalty --within --ban --prefix")),
        ),
        Scenario(
            arguments=("{world}/seq2seq", "{world}/corpus.txt", "--method", "greedy"),
            options=_words("--max-length --json --errors"),
        ),
        Scenario(
            arguments=("{world}/seq2seq", "--text", TEXT, "--method", "mbr"),
            options=_words("--samples --utility --temperature --top-k --seed --json"),
        ),
    ),
    "ask": (
        Scenario(
            arguments=("{world}/rag", "what is the capital of Chad ?"),
            options=_words("--show-evidence -n --method --max-length --seed --json --documents"),
        ),
    ),
    "link": (Scenario(arguments=("{world}/eae", "Paris is the capital"), options=("--json",)),),
    "encode": tuple(
        Scenario(
            arguments=(run, "--text", TEXT, "--out", "{out}.npz"),
            options=_words("--per-token --layer --pooling --json"),
        )
        for run in ("{world}/gpt", "{world}/bert", "{world}/lstm")
    ),
    "detect": (
        Scenario(
            arguments=("{world}/electra", "--text", TEXT),
            options=_words("--threshold --json --raw --errors"),
        ),
    ),
    "settings": tuple(
        Scenario(arguments=arguments, options=("--json",))
        for arguments in (("lstm",), ("bert",), ("t5",), ("--task", "classify"))
    ),
    "evaluate": (
        Scenario(
            arguments=("{world}/seq2seq", "--limit", "2"),
            options=_words("--split --beam --max-length --json --seed"),
        ),
    ),
    "pairs": tuple(
        Scenario(arguments=(run, "{world}/minimal.jsonl"), options=("--json",))
        for run in ("{world}/ngram", "{world}/lstm", "{world}/bert")
    ),
    "cloze": (
        Scenario(
            arguments=("{world}/bert", "{world}/corpus.txt"),
            options=_words("--texts --seed --errors --json"),
        ),
        Scenario(arguments=("{world}/lstm",), options=_words("--texts --seed --json")),
    ),
    "compare": (
        Scenario(
            arguments=("{world}/ngram", "{world}/lstm"), options=_words("--split --seed --json")
        ),
    ),
    "inspect": (
        Scenario(
            arguments=("{world}/lstm", "--text", TEXT, "--out", "{out}"),
            options=_words("--words --json"),
        ),
    ),
    "show-objective": tuple(
        Scenario(arguments=(system, "--out", "{out}.svg"), options=_words("--text --seed"))
        for system in ("gpt", "bert", "t5", "xlnet")
    ),
    "doctor": (Scenario(arguments=("{world}/lstm",), options=_words("--text --json --strict")),),
    "ablate": (
        Scenario(
            arguments=(
                *("gru-minimal", "--data", "{world}/corpus.txt", "--out", "{out}", "--size"),
                *("tiny", "--seeds", "1", "--epochs", "1", "--switches", "0"),
            ),
            options=_words("--tokenizer --json"),
        ),
    ),
    "sweep": (
        Scenario(
            arguments=("{world}/sweep.yaml", "--out", "{out}"),
            options=_words("--dry-run --json --retry-failed"),
        ),
    ),
    "finetune": (
        Scenario(
            arguments=(
                *("{world}/bert", "--task", "classify", "--data", "{world}/rows.jsonl"),
                *("--out", "{out}", "--steps", "1"),
            ),
            options=_words("--frozen --long --examples --set --seed --json --errors"),
        ),
        *(
            Scenario(
                arguments=(
                    *("{world}/" + run, "--task", task, "--data", "{world}/" + task + ".jsonl"),
                    *("--out", "{out}", "--steps", "1"),
                ),
                options=_words("--set --seed --json --errors"),
            )
            for task, run in (
                ("pair", "bert"),
                ("tag", "bert"),
                ("span", "bert"),
                ("generate", "t5"),
            )
        ),
    ),
    "predict": (
        Scenario(arguments=("{world}/classifier", "--text", TEXT), options=("--json",)),
        Scenario(arguments=("{world}/classifier", "{world}/rows.jsonl"), options=("--json",)),
    ),
    "prompt": (
        Scenario(
            arguments=("{world}/gpt", "--task", "classify", "--data", "{world}/rows.jsonl"),
            options=_words("--shots --rows --seed --json --errors"),
        ),
    ),
    "export-arpa": (Scenario(arguments=("{world}/ngram", "{out}.arpa")),),
    "import-arpa": (Scenario(arguments=("{world}/model.arpa", "--out", "{out}")),),
    "export-hf": tuple(
        Scenario(arguments=(run, "{out}")) for run in ("{world}/gpt", "{world}/bert")
    ),
    "import-hf": (
        Scenario(arguments=("{world}/hf-gpt", "--out", "{out}"), options=("--family",)),
        Scenario(arguments=("{world}/hf-bert", "--out", "{out}")),
    ),
    "words": (
        Scenario(arguments=("{world}/cbow", "nearest", "cat"), options=("--count", "--json")),
        Scenario(arguments=("{world}/vectors.txt", "analogy", "cat", "dog", "bird")),
    ),
    "index build": (
        Scenario(
            arguments=("{world}/documents.jsonl", "--encoder", "bm25", "--out", "{out}"),
            options=("--json", "--errors"),
        ),
        Scenario(
            arguments=("{world}/documents.jsonl", "--encoder", "{world}/bert", "--out", "{out}"),
            options=_words("--kind --recall --batch --seed --json"),
        ),
    ),
    "index search": tuple(
        Scenario(arguments=(index, "capital of Chad", "-k", "2"), options=("--json",))
        for index in ("{world}/bm25", "{world}/flat", "{world}/hnsw")
    ),
    "index info": (Scenario(arguments=("{world}/bm25",), options=("--json",)),),
}

VALUES: dict[str, tuple[str, ...]] = {
    "-n": ("1", "2", "5"),
    "-k": ("1", "3"),
    "--count": ("1", "3"),
    "--seed": ("0", "1", "7"),
    "--errors": ("strict", "replace"),
    "--tokenizer": ("word", "char", "bpe", "wordpiece"),
    "--source-tokenizer": ("word", "char"),
    "--objective": ("next-token", "nce", "importance", "sampled-softmax"),
    "--set": (
        *("learning_rate=0.01", "dropout=0.2", "grad_clip=0", "optimizer=sgd", "warmup_steps=2"),
        *("tokens_per_batch=64", "grad_accumulation=2", "schedule=linear", "weight_decay=0.1"),
        *("evaluate_every=1", "min_count=2", "checkpoint_steps=1", "average=2", "width=8"),
    ),
    "finetune --set": ("learning_rate=0.01", "grad_clip=0", "optimizer=sgd", "evaluate_every=1"),
    "--where": ("system=lstm", "best<9 and not (data~corpus or seed>1)", "width=", "(a", "age<2d"),
    "--sort": ("best", "-age", "width", "nothing"),
    "--columns": ("run,best", "width", "nothing"),
    "--remove": ("word", "two words"),
    "--config": ("{world}/lstm/config.json", "{world}/classifier/config.json", "{world}/nothing"),
    "--layer": ("0", "1", "-1"),
    "--pooling": ("mean", "max", "last", "first"),
    "--threshold": ("0", "0.3", "1"),
    "--method": ("thorough", "fast", "beam", "greedy", "sample"),
    "score --method": ("simple", "raw", "norm", "within-word"),
    "--max-length": ("1", "5", "12"),
    "--prefix": ("the", "the cat", ""),
    "translate --prefix": ("THE",),
    "--temperature": ("0.5", "1", "2"),
    "--top-k": ("1", "5", "100"),
    "--top-p": ("0.5", "0.9", "1"),
    "--beam": ("1", "3", "8"),
    "--length-penalty": ("0", "0.5", "1"),
    "--within": ("1", "4", "inf"),
    "--ban": ("CAT", "DOG"),
    "--samples": ("1", "4"),
    "--utility": ("chrf", "bleu"),
    "--n-best": ("1", "2"),
    "--burn-in": ("0", "2"),
    "--chains": ("1", "4"),
    "--masks": ("1",),
    "--order": ("sequential", "random"),
    "--anneal": ("2", "5"),
    "--proposal": ("uniform", "unigram"),
    "--draw": ("{out}.svg", "{out}.png"),
    "--window": ("8", "16"),
    "--stride": ("2", "4"),
    "--separator": (" ", ""),
    "--top": ("1", "3"),
    "--among": ("cat", "dog"),
    "--documents": ("{world}/documents.jsonl", "capitals"),
    "--split": ("test", "validation"),
    "--texts": ("1", "5"),
    "--words": ("cat,dog", "the"),
    "--text": (TEXT, "one two three four"),
    "--long": ("head", "tail", "head-tail", "windows"),
    "--examples": ("5", "20"),
    "--shots": ("0", "1", "2"),
    "--rows": ("1", "2"),
    "--family": ("gpt2",),
    "--kind": ("flat", "hnsw", "ivf"),
    "--recall": ("0.5", "1"),
    "--batch": ("1", "2"),
}
