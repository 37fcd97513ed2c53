"""The mutants of tests/mutants/run.py: wrong sampling that the statistical tests must see.

Each replaces `old`, which must occur exactly once in `file`, by `new`. `tests`: the executables and GoogleTest filters
that judge it; one of them must fail.
"""

from typing import NamedTuple

DRAWS = {"rules_test": "ClosedForms.*Draw*"}
FIRST = {"rules_test": "ClosedForms.First*"}
TABLES = {"rules_test": "ClosedForms.*:SamplingRules.*"}


def replica(pairs):
    """Whole texts of these pairs of method and rule (replica_rules_test)."""
    return {"replica_rules_test": ":".join(f"*ReplicaRules.*/{pair}" for pair in pairs.split())}


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: dict


RSD_S, RSD_C, CHAINS = (f"engine/draft/{name}.cpp" for name in ("rsd_s", "rsd_c", "chains"))
SAMPLING, RECURSIVE, K_SEQ, MULTI_ROUND = (
    f"engine/verify/{name}.cpp" for name in ("sampling", "recursive", "k_seq", "multi_round"))
ACCEPT = "return number_of(noise_key, at, Purpose::accept, trial); });"
RESIDUAL = "return {-1, residual.draw(number_of(noise_key, at, Purpose::residual, 0))};"

MUTANTS = [
    # What an independent reading tried.
    Mutant("rsd-s-without-truncation", RSD_S,
           "return bound - std::max(0.0, w) - det_log1p(det_exp(w < 0 ? w : -w));", "return w > 1e300 ? w : perturbed;",
           DRAWS),
    Mutant("duplicates-merged", CHAINS, "    if (child < 0) {\n", "    if (child >= 0) return child;\n    {\n", FIRST),
    Mutant("one-number-for-all-trials", SAMPLING, ACCEPT, ACCEPT.replace("trial);", "0 * trial);"), FIRST),
    Mutant("accept-numbers-of-every-step", SAMPLING, ACCEPT, ACCEPT.replace("at,", "tree.depth[node],"),
           replica("sd_2_rejection")),
    # Numbers that are used twice.
    Mutant("accept-numbers-of-every-level", SAMPLING, ACCEPT, ACCEPT.replace("at,", "position,"),
           replica("sd_2_rejection")),
    Mutant("residual-numbers-of-every-step", SAMPLING, RESIDUAL, RESIDUAL.replace("at,", "tree.depth[node],"),
           replica("sd_2_rejection")),
    Mutant("residual-number-is-an-accept-number", SAMPLING, RESIDUAL,
           RESIDUAL.replace("Purpose::residual", "Purpose::accept"), FIRST),
    Mutant("draft-noise-of-every-step", CHAINS, "noise_.row(position_ + level_,", "noise_.row(level_,",
           replica("sd_2_rejection")),
    Mutant("chains-share-noise", CHAINS, "static_cast<std::uint32_t>(chain), ends_[chain]);", "0, ends_[chain]);", DRAWS),
    Mutant("rsd-c-parents-share-noise", RSD_C, "static_cast<std::int64_t>(level_), 0, parent);",
           "static_cast<std::int64_t>(level_), 0, 0);", DRAWS),
    Mutant("rsd-s-parents-share-noise", RSD_S, "0, wanted_[parent].node);", "0, 0);", DRAWS),
    # Drafts from another distribution than the rule believes.
    Mutant("rsd-s-forgets-the-path", RSD_S, "beams.push_back({.phi = level_[c.parent].phi + c.log_p,",
           "beams.push_back({.phi = c.log_p,", DRAWS),
    Mutant("rsd-s-forgets-psi", RSD_S, "c.log_p, .psi = c.psi});", "c.log_p, .psi = 0 * c.psi});", DRAWS),
    Mutant("rsd-s-sorts-by-probability", RSD_S, "if (psi != other.psi) return psi > other.psi;",
           "if (log_p != other.log_p) return log_p > other.log_p;", FIRST),
    Mutant("rsd-c-draws-the-most-probable", RSD_C, "gumbel_top_k(p, row,", "gumbel_top_k(p, NoiseRow::silence(row.position()),",
           DRAWS),
    # Wrong rules.
    Mutant("recursive-keeps-drawn-tokens", RECURSIVE, "            p.remove(token);\n", "", FIRST),
    Mutant("recursive-does-not-normalise", RECURSIVE, "residual.reduce(p.weights(), p.scale());",
           "residual.reduce(p.weights(), 1.0);", FIRST),
    Mutant("recursive-keeps-certain-drafts", RECURSIVE, "            residual.remove(token);\n", "",
           replica("ngram_2x2_recursive")),
    Mutant("recursive-loses-tails", RECURSIVE, "min_mass = 1e-200", "min_mass = -1", TABLES),
    Mutant("multi-round-reduces-once", MULTI_ROUND, "            residual.reduce(p, 1.0);",
           "            if (k == 0) residual.reduce(p, 1.0);", FIRST),
    Mutant("multi-round-believes-the-first-model", MULTI_ROUND, "numbers(k) * x.probability()",
           "numbers(k) * drafts.front().drawn_from->probability(x.token)", FIRST),
    Mutant("k-seq-without-discount", K_SEQ,
           "const double gamma = kernels::min_gamma(num_drafts, [&](double at) { return mass.at(at); });",
           "const double gamma = 1;", FIRST),
    Mutant("k-seq-counts-all-chains", K_SEQ, "const auto num_drafts = static_cast<int>(drafts.size());",
           "const int num_drafts = 2;", replica("spectr_2x2_k_seq")),
    Mutant("k-seq-residual-of-one-draft", K_SEQ, "kernels::chance_of_any(beta, num_drafts) / beta", "1.0", FIRST),
    Mutant("all-rejected-draws-from-the-target", SAMPLING, "residual.draw(number_of(noise_key,",
           "ResidualDistribution(target(node)).draw(number_of(noise_key,", FIRST),
]
