"""Claims of papers about each other and about their forms: questions about recipes and policies."""

from paired import Question

# For selections: `keep` and the codec, which is raw, are left out.
SELECTIONS = (
    Question("Do the first rows help?", "streaming", "streaming:sinks=0", "StreamingLLM"),
    Question("Does it beat a random choice?", "streaming", "random", "StreamingLLM"),
    Question("Does it beat StreamingLLM?", "h2o", "streaming", "H2O"),
    Question("Does it beat H2O?", "tova", "h2o", "TOVA"),
    Question("Does it beat StreamingLLM?", "tova", "streaming", "TOVA"),
    Question("Does it beat StreamingLLM?", "snapkv", "streaming", "SnapKV"),
    Question("Does it beat H2O?", "snapkv", "h2o", "SnapKV"),
    Question("Do the paper's settings beat kvpress's?", "snapkv-paper", "snapkv", "SnapKV"),
    Question("Does a window of 32 beat one of 64?", "snapkv:window=32", "snapkv", "SnapKV"),
    Question("Does it beat H2O, in the paper's settings?", "snapkv-paper", "h2o", "SnapKV"),
    Question("Does it beat SnapKV, window outside the budget?", "pyramidkv", "snapkv", "PyramidKV"),
    Question("Does it beat SnapKV, kvpress's form?", "pyramidkv:beside=0", "snapkv", "PyramidKV"),
    Question(
        "Does the window outside beat kvpress's form?",
        "pyramidkv",
        "pyramidkv:beside=0",
        "PyramidKV",
    ),
    Question("Do its budgets help SnapKV, kvpress's floor?", "ada-snapkv", "snapkv", "Ada-KV"),
    Question("And the authors' mixture?", "ada-snapkv:mix=1", "snapkv", "Ada-KV"),
    Question(
        "And the floor with a window of 32?", "ada-snapkv:window=32", "snapkv:window=32", "Ada-KV"
    ),
    Question(
        "And in the authors' form and settings?", "ada-snapkv-paper", "snapkv-paper", "Ada-KV"
    ),
    Question("Does the mixture beat the floor?", "ada-snapkv:mix=1", "ada-snapkv", "Ada-KV"),
    Question(
        "Do its budgets help PyramidKV, kvpress's form?",
        "ada-pyramidkv:beside=0",
        "pyramidkv:beside=0",
        "Ada-KV",
    ),
    Question("Do its budgets help CriticalKV?", "ada-criticalkv", "criticalkv", "Ada-KV"),
    Question("Do its budgets help Expected Attention?", "ada-expected", "expected", "Ada-KV"),
    Question("Does it beat SnapKV?", "chunkkv", "snapkv", "ChunkKV"),
    Question("And in both papers' settings?", "chunkkv-paper", "snapkv-paper", "ChunkKV"),
    Question("Do the paper's settings beat kvpress's?", "chunkkv-paper", "chunkkv", "ChunkKV"),
    Question("Do chunks of 3 beat chunks of 20?", "chunkkv:chunk=3", "chunkkv", "ChunkKV"),
    Question("Do chunks of 5 beat chunks of 20?", "chunkkv:chunk=5", "chunkkv", "ChunkKV"),
    Question("Do chunks of 10 beat chunks of 20?", "chunkkv:chunk=10", "chunkkv", "ChunkKV"),
    Question("Do chunks of 30 beat chunks of 20?", "chunkkv:chunk=30", "chunkkv", "ChunkKV"),
    Question(
        "Is scoring each layer better than reuse in pairs?", "chunkkv", "chunkkv:reuse=2", "ChunkKV"
    ),
    Question("Does reuse in pairs beat SnapKV?", "chunkkv:reuse=2", "snapkv", "ChunkKV"),
    Question(
        "Are chunks in the first half of the layers better than in all?",
        "chunkkv:chunked=0.5",
        "chunkkv",
        "ChunkKV",
    ),
    Question("Does it beat SnapKV?", "criticalkv", "snapkv", "CriticalKV"),
    Question("Does it beat SnapKV?", "defensive", "snapkv", "DefensiveKV"),
    Question("Does it beat CriticalKV?", "defensive", "criticalkv", "DefensiveKV"),
    Question(
        "Does it share budgets over layers with gain?",
        "layer-defensive",
        "defensive",
        "DefensiveKV",
    ),
    Question("Does it beat SnapKV with that?", "layer-defensive", "snapkv", "DefensiveKV"),
    Question(
        "Do the authors' shares in stage 1 help?",
        "defensive:relative=1",
        "defensive",
        "DefensiveKV",
    ),
    Question("And over layers?", "layer-defensive:relative=1", "layer-defensive", "DefensiveKV"),
    Question("Does it beat Ada-KV?", "headkv", "ada-snapkv-paper", "HeadKV"),
    Question("Does it beat SnapKV in its settings?", "headkv", "snapkv-paper", "HeadKV"),
    Question("Does it beat H2O?", "prefixkv", "h2o", "PrefixKV"),
    Question("Does it beat StreamingLLM?", "prefixkv", "streaming", "PrefixKV"),
    Question("Does it beat H2O?", "nacl", "h2o", "NACL"),
    Question("Does its lot beat SnapKV?", "nacl", "snapkv", "NACL"),
    Question("Does it beat H2O?", "keyformer", "h2o", "Keyformer"),
    Question("Does it beat SnapKV?", "cake", "snapkv", "CAKE"),
    Question("Does it beat PyramidKV, kvpress's form?", "cake", "pyramidkv:beside=0", "CAKE"),
    Question("Does it beat SnapKV?", "expected", "snapkv", "Expected Attention"),
    Question("Does it beat TOVA?", "expected", "tova", "Expected Attention"),
    Question("Does it beat the L2 norm?", "keydiff", "knorm", "KeyDiff"),
    Question("Does it beat StreamingLLM?", "keydiff", "streaming", "KeyDiff"),
    Question("Does it beat TOVA?", "keydiff", "tova", "KeyDiff"),
    Question("Does it beat the L2 norm?", "lagkv", "knorm", "LagKV"),
    Question("Does it beat StreamingLLM?", "lagkv", "streaming", "LagKV"),
    Question("Does it beat a random choice?", "knorm", "random", "L2 norm"),
    Question(
        "Does it beat StreamingLLM, in the paper's settings?",
        "simlayer",
        "streaming",
        "SimLayerKV",
    ),
    Question(
        "Does it beat StreamingLLM, 128 recent rows?",
        "simlayer:recent=128",
        "streaming",
        "SimLayerKV",
    ),
    Question("Does it beat StreamingLLM?", "sepllm", "streaming", "SepLLM"),
)

# Questions about codecs, compared with each other and with selections.
CODECS = (
    Question("Does it beat 4 bits by token?", "mixed", "int4", "KIVI"),
    Question("Does it beat 4 bits by token?", "turbo:bits=4", "int4", "TurboQuant"),
    Question("Does it beat 4 bits by token?", "cachegen:k=6,v=12", "int4", "CacheGen"),
    Question("Does it beat TurboQuant's 4 bits?", "cachegen:k=10,v=10", "turbo:bits=4", "CacheGen"),
    Question("Does it beat TurboQuant's 3 bits?", "cachegen:k=20,v=20", "turbo:bits=3", "CacheGen"),
    Question("Does it beat TurboQuant's 2 bits?", "cachegen:k=40,v=48", "turbo:bits=2", "CacheGen"),
    Question("Does E4M3 beat int8?", "fp8", "int8", "FP8"),
    Question("Does half of the rows beat 8 bits?", "chunkkv:keep=0.5", "int8", "ChunkKV"),
    Question(
        "Does half of the rows beat 8 bits?", "layer-defensive:keep=0.5", "int8", "DefensiveKV"
    ),
)

# Questions about read policies, compared with each other and with selections.
READING = (
    Question(
        "Does InfiniGen beat the best eviction?",
        "infinigen:rows=0.2",
        "layer-defensive:keep=0.2",
        "InfiniGen",
    ),
    Question("Does InfiniGen beat H2O?", "infinigen:rows=0.2", "h2o:keep=0.2", "InfiniGen"),
    Question(
        "Does Quest beat the best eviction?", "quest:rows=0.2", "layer-defensive:keep=0.2", "Quest"
    ),
    Question("Does Quest beat H2O?", "quest:rows=0.2", "h2o:keep=0.2", "Quest"),
    Question(
        "Do clusters beat the best eviction?",
        "clusters:rows=0.2",
        "layer-defensive:keep=0.2",
        "ClusterKV",
    ),
    Question("Do rows beat pages of 16?", "exact-topk:rows=0.2", "quest:rows=0.2", "Quest"),
    Question("Do pages of 4 beat pages of 16?", "quest:rows=0.2,page=4", "quest:rows=0.2", "Quest"),
    Question("Do clusters beat pages?", "clusters:rows=0.2", "landmark:rows=0.2", "ClusterKV"),
    Question(
        "Does the own query beat InfiniGen's guess?",
        "infinigen:rows=0.2,query=own",
        "infinigen:rows=0.2",
        "InfiniGen",
    ),
    Question(
        "Does the own query beat one guessed after attention?",
        "precision:near=turbo3,rows=0.02",
        "precision:near=turbo3,rows=0.02,query=attention",
        "InfiniGen",
    ),
    Question(
        "Do offline rotations beat the context's own?",
        "infinigen:rows=0.2,rotation=FILE",
        "infinigen:rows=0.2",
        "InfiniGen",
    ),
)


def name_of(recipe):
    """The name that CODECS and READING have for a recipe or policy of a report: which calibration
    file it reads does not matter."""
    before, given, digits = recipe.removesuffix("+raw").partition("rotation=")
    return before + given + ("FILE" if digits not in ("", "context") else digits)
