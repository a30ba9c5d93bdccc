#include "launch/app/flags/other_names.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "launch/app/flags/cli.h"

namespace ddptrain {
namespace {

/// Names of other programs for a flag, separated by spaces. With `value`, they take no value themselves. `note` says
/// what the number means here, if it means something else in some programs.
struct Alias {
  const char* flag;
  const char* names;
  const char* value = "";
  const char* note = "";
};

constexpr Alias kAliases[] = {
    {"--model", "arch model-name model-arch net network"},
    {"--data",
     "data-path data-dir data-root data-folder dataset dataset-dir dataset-path train-data train-data-path "
     "train-dir train-file train-files input-bin input-dir"},
    {"--val-fraction", "validation-split val-split val-ratio"},
    {"--init", "init-weights load-weights pretrained-weights weights pretrain-path"},
    {"--epochs",
     "num-epochs number-of-epochs n-epochs nepochs max-epochs max-epoch num-train-epochs train-epochs "
     "training-epochs total-epochs"},
    {"--steps",
     "max-steps num-steps n-steps nsteps train-steps training-steps num-train-steps max-train-steps "
     "total-steps max-iters num-iters n-iters train-iters iters num-iterations max-iterations iterations"},
    {"--batch",
     "batch-size bs batchsize micro-batch micro-batch-size micro-bs mbs device-batch-size local-batch-size "
     "batch-size-per-gpu batch-size-per-device batch-size-per-rank per-device-batch-size "
     "per-device-train-batch-size per-gpu-train-batch-size train-micro-batch-size-per-gpu"},
    {"--grad-accum",
     "gradient-accumulation grad-accumulation-steps grad-accumulation grad-accum-steps grad-acc-steps "
     "accumulate-grad-batches accumulation-steps accum-steps accum-iter update-freq batches-per-allreduce "
     "backward-passes-per-step"},
    {"--grad-accum", "gradient-accumulation-steps", "",
     "micro-steps of each rank in a step. nanoGPT divides its number by the ranks"},
    {"--seed", "random-seed manual-seed rng-seed"},
    {"--optimizer", "optim opt"},
    {"--lr", "learning-rate peak-lr max-lr"},
    {"--beta1", "adam-beta1"},
    {"--beta2", "adam-beta2"},
    {"--weight-decay", "wd l2"},
    {"--clip-norm",
     "grad-clip clip-grad clip max-grad-norm max-norm gradient-clip-val gradient-clipping "
     "clip-grad-norm grad-clip-norm gradient-clip-norm grad-norm-clip"},
    {"--schedule", "lr-schedule lr-scheduler lr-scheduler-type scheduler sched lr-decay-style"},
    {"--warmup", "warmup-steps warmup-iters warmup-iterations num-warmup-steps lr-warmup-steps lr-warmup-iters"},
    {"--layers", "n-layer n-layers num-layers num-hidden-layers depth"},
    {"--heads", "n-head n-heads num-heads num-attention-heads"},
    {"--width", "n-embd n-embed embed-dim embedding-dim d-model model-dim hidden-size"},
    {"--hidden", "hidden-size hidden-dim hidden-units hidden-width"},
    {"--ff", "ffn-hidden-size intermediate-size d-ff ff-dim ffn-dim n-inner"},
    {"--seq",
     "block-size seq-length seq-len sequence-length max-seq-len max-seq-length context-length context-size "
     "ctx-len n-ctx"},
    {"--vocab", "vocab-size"},
    {"--key-heads", "num-key-value-heads num-kv-heads n-kv-heads n-kv-head"},
    {"--head-size", "head-dim"},
    {"--rope-base", "rope-theta rotary-base"},
    {"--norm-epsilon", "rms-norm-eps norm-eps"},
    {"--max-tokens", "max-new-tokens"},
    {"--dropout", "dropout-rate drop-rate"},
    {"--recompute", "gradient-checkpointing activation-checkpointing checkpoint-activations", "block"},
    {"--precision", "mixed-precision dtype"},
    {"--precision", "amp use-amp", "auto"},
    {"--precision", "bf16 bfloat16", "bf16"},
    {"--precision", "fp32 float32", "fp32"},
    {"--precision", "tf32", "tf32"},
    {"--precision", "fp8", "fp8"},
    {"--device", "accelerator"},
    {"--device", "no-cuda cpu use-cpu no-gpu", "cpu"},
    {"--device", "cuda use-cuda use-gpu", "cuda"},
    {"--threads", "num-threads omp-num-threads"},
    {"--offload", "offload-optimizer optimizer-cpu-offload optimizer-offload", "optimizer"},
    {"--zero", "zero-stage"},
    {"--pp", "pp-size pipeline-parallel-size pipeline-model-parallel-size"},
    {"--tp", "tp-size tensor-parallel-size tensor-model-parallel-size model-parallel-size"},
    {"--comm", "backend dist-backend distributed-backend"},
    {"--bucket-mb", "bucket-cap-mb fusion-threshold-mb"},
    {"--checkpoint", "checkpoint-dir checkpoint-folder ckpt-dir ckpt"},
    {"--checkpoint-every", "save-steps"},
    {"--checkpoint-every", "checkpoint-interval checkpoint-freq save-interval save-every save-freq", "",
     "steps, or a time such as 10m. Some programs count epochs"},
    {"--keep", "save-total-limit keep-last max-to-keep"},
    {"--resume", "resume-from resume-from-checkpoint load-checkpoint restore load"},
    {"--metrics", "metrics-file log-file"},
    {"--log-every", "log-interval log-freq log-steps log-every-n-steps logging-steps print-freq disp-freq"},
    {"--eval-every", "eval-interval eval-steps val-loss-every"},
    {"--eval-every", "eval-freq val-interval val-check-interval", "", "steps. Some programs count epochs"},
    {"--log-level", "loglevel logging-level"},
};

/// Names of other programs, separated by spaces, that mean nothing here, and what to do instead.
struct Hint {
  const char* names;
  const char* text;
};

constexpr Hint kHints[] = {
    {"--nproc-per-node --nproc --nnodes --num-nodes --num-processes --num-machines --world-size --ranks-per-node "
     "--num-proc --np -np --num-gpus --ngpus --n-gpus --gpus --gpus-per-node --devices --n-devices",
     "mpirun sets the number of ranks: mpirun -np N ddptrain ..., with one rank per GPU or core"},
    {"--master-addr --master-port --node-rank --local-rank --machine-rank --rank --rdzv-endpoint --rdzv-backend "
     "--rdzv-id --standalone --dist-url --init-method --main-process-ip --main-process-port --hosts -H --hostfile "
     "--machinefile --multiprocessing-distributed",
     "MPI connects the ranks: mpirun -np N --hostfile FILE ddptrain ..."},
    {"--gpu --gpu-id --gpu-ids --cuda-device", "CUDA_VISIBLE_DEVICES=0,3 chooses the GPUs"},
    {"--max-restarts", "launch/supervise restarts a job: launch/supervise --restarts N mpirun -np N ddptrain ..."},
    {"--global-batch-size --global-batch --total-batch-size --train-batch-size --effective-batch-size",
     "samples per step are --batch (per rank) x --grad-accum x ranks: give --batch"},
    {"--test-batch-size --val-batch-size --eval-batch-size --per-device-eval-batch-size",
     "evaluation takes the --batch of training"},
    {"--base-lr", "give --lr; --lr-scaling linear multiplies it by the samples per step / --lr-base-batch"},
    {"--min-lr --final-lr --learning-rate-decay-frac --end-lr --eta-min",
     "--schedule cosine and --schedule linear end at 0"},
    {"--gamma --lr-decay --lr-step --lr-decay-iters --decay-lr --lr-decay-steps --step-size",
     "--schedule constant, cosine or linear; cosine and linear last until the end of the run"},
    {"--warmup-epochs --warmup-ratio --warmup-fraction --warmup-proportion", "--warmup counts steps"},
    {"--adam-eps --adam-epsilon --eps --epsilon", "epsilon is fixed at 1e-8"},
    {"--nesterov", "--optimizer sgd --momentum M is without Nesterov's term"},
    {"--workers --num-workers --dataloader-num-workers --pin-memory --prefetch-factor",
     "the data is in memory, so no processes load it: leave the flag out"},
    {"--val-data --val-data-path --val-dir --val-file --val-files --input-val-bin --test-data",
     "--data finds the test set: test images, or val shards beside the training shards, or --val-fraction of a text"},
    {"--output-dir --out-dir --output --out --save-dir --save-path --save-model --model-dir --default-root-dir "
     "--checkpoint-format",
     "--save DIR keeps the trained weights, --checkpoint DIR the checkpoints of a run, --metrics FILE its metrics"},
    {"--log-dir --logdir --tensorboard --tensorboard-dir --report-to --wandb --wandb-log --wandb-project --use-wandb",
     "--metrics FILE writes the curves; launch/tensorboard-events FILE converts them for TensorBoard"},
    {"--pretrained --init-from --model-name-or-path --from-pretrained",
     "--init PATH starts from weights on the disk; --resume auto continues a run of --checkpoint DIR"},
    {"--eval-iters --eval-batches --limit-val-batches --val-max-steps --max-eval-samples",
     "--eval-samples N limits the samples of an evaluation"},
    {"--deepspeed --deepspeed-config --fsdp --strategy --ddp --sharding-strategy --use-distributed-optimizer",
     "ranks of mpirun train as in DDP; --zero 1, 2 or 3 divides optimizer state, gradients and weights (3: as FSDP)"},
    {"--offload-master --offload-opt-m --offload-opt-v --cpu-offload",
     "--offload optimizer keeps master weights and moments in the memory of the host"},
    {"--fp16 --half", "there is no fp16: --precision bf16 has the range of fp32 and needs no loss scaling"},
    {"--fp16-allreduce --gradient-compression --compression", "--comm-dtype bf16 sends gradients in bf16"},
    {"--use-adasum --adasum --gradient-predivide-factor", "gradients are averaged over the ranks"},
    {"--overlap-comm --overlap-grad-reduce --no-overlap", "--overlap on, backward, off or none"},
    {"--compile --torch-compile --jit --cuda-graphs --use-cuda-graph",
     "--graph on, the default, runs a step as one CUDA graph"},
    {"--flash --flash-attn --use-flash-attn --attn-implementation", "GPUs always use fused attention"},
    {"--profile --profiler --nsys", "--trace FILE writes a timeline of a few steps"},
    {"--verbose --quiet", "--log-level debug or warn"},
    {"--iterations-per-epoch --steps-per-epoch", "an epoch is one pass over the training set; --steps N ends a run"},
    {"-a", "--model; llm.c's -a, to train on one batch again and again, has no counterpart"},
    {"-b", "--batch (samples per rank)"},
    {"-c", "--weight-decay, or --config"},
    {"-d", "--data; llm.c's -d, the tokens of a step, is --batch x --seq x --grad-accum x ranks: give --grad-accum"},
    {"-e",
     "--epochs, or --evaluate; llm.c's -e, the model, is --model gpt with --layers, --width and --heads, or --init "
     "DIR"},
    {"-f", "--precision tf32 or fp32"},
    {"-g",
     "mpirun -np N starts a rank per GPU, and CUDA_VISIBLE_DEVICES=0,3 chooses them; llm.c's -g, the length of a text "
     "that the model writes, is --max-tokens"},
    {"-i", "--data (training files)"},
    {"-j",
     "the data is in memory, so no processes load it: leave the flag out; for llm.c's -j, --data finds val shards "
     "beside the training shards"},
    {"-k", "--schedule"},
    {"-l", "--lr"},
    {"-lg", "--metrics FILE has the clocks, the power and the memory of GPUs"},
    {"-m", "--model; llm.c's -m, the batches of an evaluation, is --eval-samples"},
    {"-n",
     "mpirun -np N sets the number of ranks; llm.c's -n, the steps between checkpoints, is --checkpoint DIR with "
     "--checkpoint-every"},
    {"-nk", "--keep N"},
    {"-o", "--save DIR, --checkpoint DIR or --metrics FILE"},
    {"-p", "--log-every N"},
    {"-pn -pr -pg -pm -pf -ps", "MPI connects the ranks: mpirun -np N --hostfile FILE ddptrain ..."},
    {"-q",
     "--log-level warn; for llm.c's -q, the last learning rate, --schedule cosine ends at 0 and constant at --lr"},
    {"-r", "--recompute, or --resume"},
    {"-s", "--seed or --steps; llm.c's -s, the steps between texts that the model writes, is --sample-every"},
    {"-sg -sl", "--on-nonfinite skip leaves out steps whose loss or gradient is NaN or infinite"},
    {"-t", "--seq (tokens per sample)"},
    {"-u", "--warmup (steps)"},
    {"-v", "--log-level debug; llm.c's -v, the steps between evaluations, is --eval-every"},
    {"-w", "--master fp32 or --master off (master weights)"},
    {"-x", "--steps"},
    {"-y", "--checkpoint DIR --resume auto"},
    {"-z", "--zero"},
};

/// Values of other programs that mean the same as a value of the flag.
struct OtherValue {
  const char* flag;
  const char* names;
  const char* value;
};

constexpr OtherValue kOtherValues[] = {
    {"--precision", "bfloat16 bf16-mixed bf16-true", "bf16"},
    {"--precision", "float32 float fp32-true 32-true 32 no", "fp32"},
    {"--device", "gpu", "cuda"},
    {"--schedule", "constant_with_warmup none", "constant"},
    {"--optimizer", "SGD momentum", "sgd"},
    {"--optimizer", "Adam", "adam"},
    {"--optimizer", "AdamW adamw_torch adamw_hf", "adamw"},
};

bool is_among(const std::string& word, const char* names) {
  std::istringstream in(names);
  for (std::string name; in >> name;) {
    if (name == word) return true;
  }
  return false;
}

std::string hyphened(std::string name) {
  std::replace(name.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(name.size(), 2)), name.end(), '_', '-');
  return name;
}

bool has(const Flags& flags, const std::string& name) {
  return std::any_of(flags.begin(), flags.end(), [&](const Flag& flag) { return name == "--" + flag.name(); });
}

/// The alias that `name` (with dashes) is. Of several, the first whose flag is one of `flags`.
const Alias* alias_of(const std::string& name, const Flags& flags) {
  if (name.rfind("--", 0) != 0 || has(flags, name)) return nullptr;
  const Alias* first = nullptr;
  for (const Alias& alias : kAliases) {
    if (!is_among(name.substr(2), alias.names)) continue;
    if (has(flags, alias.flag)) return &alias;
    if (first == nullptr) first = &alias;
  }
  return first;
}

/// True and false as scripts of other programs spell them after a flag such as --bf16.
std::optional<bool> truth_of(const std::string& word) {
  if (is_among(word, "true True TRUE 1 yes on")) return true;
  if (is_among(word, "false False FALSE 0 no off")) return false;
  return std::nullopt;
}

}  // namespace

std::string note_about(const std::string& name, const Flags& flags) {
  const Alias* const alias = alias_of(hyphened(name), flags);
  if (alias == nullptr || *alias->note == '\0' || !has(flags, alias->flag)) return {};
  return fmt::format("{} is {} here: {}", name, alias->flag, alias->note);
}

std::vector<std::string> notes_about(int argc, const char* const* argv, const Flags& flags) {
  std::vector<std::string> notes;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string note = note_about(word.substr(0, word.find('=')), flags);
    if (!note.empty()) notes.push_back(note);
  }
  return notes;
}

std::vector<std::string> with_own_names(int argc, const char* const* argv, const Flags& flags) {
  const std::vector<std::string> typed(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> words;
  for (std::size_t i = 0; i < typed.size(); ++i) {
    const std::string& word = typed[i];
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string name = hyphened(word.substr(0, equals));
    const Alias* const alias = alias_of(name, flags);
    if (alias == nullptr || !has(flags, alias->flag)) {
      const bool is_known = alias != nullptr || has(flags, name) || !hint_about(name).empty();
      words.push_back(is_known ? name + word.substr(equals) : word);
    } else if (*alias->value == '\0') {
      words.push_back(alias->flag + word.substr(equals));
    } else {
      std::optional<bool> wanted;
      if (equals < word.size()) {
        wanted = truth_of(word.substr(equals + 1));
        if (!wanted) usage_error("{}: give true or false", word);
      } else if (i + 1 < typed.size() && truth_of(typed[i + 1])) {
        wanted = truth_of(typed[++i]);
      }
      if (wanted.value_or(true)) words.push_back(std::string(alias->flag) + "=" + alias->value);
    }
  }
  return words;
}

OwnLine own_line(const std::string& key, const std::string& value, const Flags& flags) {
  const std::string name = hyphened("--" + key);
  const Alias* const alias = alias_of(name, flags);
  if (alias == nullptr || !has(flags, alias->flag)) return {has(flags, name) ? name.substr(2) : key, ""};
  if (*alias->value == '\0') return {alias->flag + 2, ""};
  const std::optional<bool> wanted = truth_of(value);
  if (!wanted) return {alias->flag + 2, "", "true or false"};
  return {*wanted ? alias->flag + 2 : "", alias->value};
}

std::string own_name(const std::string& flag) {
  const Alias* const alias = alias_of(flag, {});
  return alias == nullptr ? flag : alias->flag;
}

std::string hint_about(const std::string& flag) {
  for (const Hint& hint : kHints) {
    if (is_among(hyphened(flag), hint.names)) return hint.text;
  }
  return {};
}

void take_other_values(Flags& flags) {
  for (Flag& flag : flags) {
    const std::string name = "--" + flag.name();
    if (std::none_of(std::begin(kOtherValues), std::end(kOtherValues), [&](const auto& o) { return name == o.flag; })) {
      continue;
    }
    flag.value.set = [name, set = flag.value.set](std::string& text) {
      for (const OtherValue& other : kOtherValues) {
        if (name == other.flag && is_among(text, other.names)) text = other.value;
      }
      return set(text);
    };
  }
}

std::string other_names_text() {
  std::string text = "Flags of other programs that mean the same here (hyphens or underscores):\n";
  for (const Alias& alias : kAliases) {
    const bool fixed = *alias.value != '\0';
    std::string names;
    std::istringstream in(alias.names);
    for (std::string name; in >> name;) names += (names.empty() ? "--" : " --") + name;
    text += fmt::format("  {}{}{}\n{}", alias.flag, fixed ? " " : "", alias.value, wrapped(names, 6));
    if (*alias.note != '\0') text += wrapped(alias.note, 8);
  }
  text += "\nFlags of other programs that have no counterpart, and what to do instead:\n";
  for (const Hint& hint : kHints) text += fmt::format("{}{}", wrapped(hint.names, 2), wrapped(hint.text, 6));
  return text;
}

}  // namespace ddptrain
