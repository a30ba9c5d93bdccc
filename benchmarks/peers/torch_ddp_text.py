"""What the PyTorch peers of language models share: random tokens, AdamW, flags of the training and the run."""

import time

import torch
import torch_ddp

BATCHES = 16  # of random tokens


def add_arguments(parser, **shape):
    """`shape`: names and defaults of the flags that have the sizes of the network."""
    torch_ddp.add_arguments(parser, mode="default")
    parser.set_defaults(warmup=15)
    for name, size in shape.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm; 0: no clipping")


def parse(parser, argv):
    args = parser.parse_args(argv)
    torch_ddp.check_arguments(parser, args)
    return args


def make_peer(net, blocks, args, job):
    """`net` maps tokens [batch, sequence + 1] to the loss; `blocks` are the parts that --shard gathers one by one."""
    random = torch.Generator(job.device).manual_seed(job.rank)
    tokens = torch.randint(args.vocab, (BATCHES, args.batch, args.seq + 1), generator=random, device=job.device)
    step = torch.zeros(1, dtype=torch.int64, device=job.device)

    def loss(module):
        batch = tokens.index_select(0, step % BATCHES).squeeze(0)
        step.add_(1)
        with torch_ddp.autocast(args):
            return module(batch)

    def optimizer(capturable):
        decayed = [p for p in net.parameters() if p.dim() > 1]
        others = [p for p in net.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=job.on_gpu, capturable=capturable)

    return torch_ddp.Peer(net, loss, optimizer, lambda: None, args.batch * args.seq, tuple(blocks), args.clip)


def run(args, make_net):
    """Measures the network that make_net(args) builds, with `blocks` as an attribute, and prints the result."""
    began = time.perf_counter()
    with torch_ddp.job(args) as job:
        torch.manual_seed(1)
        net = make_net(args).to(job.device)
        trainer = torch_ddp.Trainer(make_peer(net, net.blocks, args, job), args, job)
        result = torch_ddp.describe(args, job) | {
            "batch_per_rank": args.batch, "sequence": args.seq, "layers": args.layers, "width": args.width,
            "startup_seconds": time.perf_counter() - began,
        }  # fmt: skip
        measured = torch_ddp.measure(trainer, args)
        result |= {f"tokens_{name}" if name.startswith("per_second") else name: value for name, value in measured.items()}
        result["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30 if job.on_gpu else None
        result["loss"] = float(trainer.loss)
        torch_ddp.print_result(job, result)
        trainer.graph = None  # before the communicator that it uses
