//! The list of all options: key, type, default, values, status, meaning.

use toml::Value;

use super::choice::{
    AmpLevel, CheckpointType, HalfDtype, LossScale, OffloadLevel, PipelineStrategy, RankOrder, ReduceMethod,
    ResumeMode, ScheduleKind, StateTier, TransportChoice, ZeroLevel,
};
use super::kind::ValueKind;
use super::option::options;
use super::origin::Origin;
use super::path_number::PathNumber;
use super::setting::NONE;

/// Whether an option has an effect in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All of its values work.
    Implemented,
    /// Only its default is accepted: the feature comes later.
    NotYet,
}

/// One option: its key, its values, its meaning, and how to reach it in a [`Config`].
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The section, which is the part of the key before the dot.
    pub section: &'static str,
    /// The part of the key after the dot.
    pub name: &'static str,
    /// What it means, one sentence or more.
    pub meaning: &'static str,
    /// The values it takes.
    pub kind: ValueKind,
    /// Whether it has an effect yet.
    pub status: Status,
    pub(crate) get: fn(&Config) -> Value,
    /// False where the field cannot hold the value.
    pub(crate) put: fn(&mut Config, &Value) -> bool,
}

impl OptionSpec {
    /// The whole key: `train.seed`.
    pub fn key(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// The value nobody has to give.
    pub fn default(&self) -> Value {
        (self.get)(&Config::default())
    }
}

const COUNT: ValueKind = ValueKind::at_least(1);
/// Mesh sizes are bounded, so that a slip of the finger does not ask for memory.
const SIZE: ValueKind = ValueKind::Integer { least: 1, most: MOST_RANKS as i64 };
const MAYBE_COUNT: ValueKind = ValueKind::Or(NONE, &COUNT);
const MAYBE_SIZE: ValueKind = ValueKind::Or(NONE, &SIZE);
const TIER: ValueKind = ValueKind::Or(NONE, &ValueKind::Choice(StateTier::WORDS));

/// The largest world.
pub(crate) const MOST_RANKS: usize = 1 << 20;

options! {
    /// Micro-batches and stages.
    pipeline: PipelineConfig {
        /// Micro-batches per step; with one stage, gradient accumulation. Not given, it follows
        /// from the two batch sizes where both are.
        num_micro_batch: usize = 1, COUNT, Implemented;
        /// Stages, when they are chosen automatically: with auto.auto_parallel.
        num_stages: Option<usize> = None, MAYBE_SIZE, Implemented;
        /// Order of a stage's forwards and backwards: PreferForward (all forwards, then all
        /// backwards), PreferBackward (1F1B), PreferBackwardOptimizer (1F1B with one more forward
        /// in flight on all but the last stage).
        strategy: PipelineStrategy = PipelineStrategy::PreferBackward,
            ValueKind::Choice(PipelineStrategy::WORDS), Implemented;
        /// Parts of the model that each stage runs, in turn with the other stages. More than one: interleaved 1F1B, with
        /// PreferBackward.
        num_chunks: usize = 1, COUNT, Implemented;
        /// Where stages are cut: the first segment of each part of the model but the first, in order. none: they are chosen.
        cuts: Option<Vec<usize>> = None, ValueKind::Or(NONE, &ValueKind::Integers), Implemented;
        /// A file with a schedule of one's own, in place of pipeline.strategy: a line a stage, such as "F0 F1 B0 B1".
        /// Empty: none.
        schedule_file: String = String::new(), ValueKind::Text, Implemented;
    }
    /// Recomputation of activations.
    gradient_checkpoint: GradientCheckpointConfig {
        /// "collection": the user names the points that are kept, everything between two is
        /// recomputed. "auto": the plan chooses them. The last segment is never recomputed, as its backward follows at
        /// once.
        r#type: CheckpointType = CheckpointType::Off, ValueKind::Choice(CheckpointType::WORDS), Implemented;
        /// With "collection": the segments whose entrance is kept, by their names or numbers, from 0.
        kept: Option<Vec<String>> = None, ValueKind::Or(NONE, &ValueKind::Words), Implemented;
        /// With "collection", in place of kept: the segments that are run again, as runs of which only the entrance is kept, such as
        /// "2..4": segments 2 and 3 of those that count from 0. Everything else is stored.
        runs: Option<Vec<String>> = None, ValueKind::Or(NONE, &ValueKind::Words), Implemented;
        /// With "auto": the bytes that a rank may store for backward, of all micro-batches that are under way. As
        /// little as they allow is recomputed, measured in the first step on its largest micro-batch; later ones should
        /// not be larger. It needs `CountingAllocator` as the program's allocator, and a device whose memory is the
        /// host's. none: as EPL chooses.
        budget: Option<u64> = None, ValueKind::Or(NONE, &ValueKind::at_least(1)), Implemented;
        /// The last task graph, that is part of the pipeline, that is covered; -1: all.
        end_taskgraph: i64 = -1, ValueKind::at_least(-1), Implemented;
        /// In the first step, compare with the gradients computed without recomputation, value by value. Two more forwards and
        /// backwards, which change nothing: what a layer leaves as it is when it is told that a pass is repeated, it leaves as it is
        /// in both.
        check_gradients: bool = false, ValueKind::Switch, Implemented;
    }
    /// State sharded over the data axis.
    zero: ZeroConfig {
        /// What is sharded. v0: optimizer state. v1: and gradients, whole while they accumulate.
        /// v2: and gradients in every micro-batch. v3: and parameters, which are gathered for one segment at a time;
        /// every segment is recomputed then, but for the last one.
        level: ZeroLevel = ZeroLevel::Off, ValueKind::Choice(ZeroLevel::WORDS), Implemented;
    }
    /// State kept outside the device.
    offload: OffloadConfig {
        /// Where parameters, gradients and optimizer state live. v0: host memory. v1: files. Parameters come to the
        /// device for one segment at a time; every segment is recomputed then, but for the last one.
        level: OffloadLevel = OffloadLevel::Off, ValueKind::Choice(OffloadLevel::WORDS), Implemented;
        /// Where parameters lie. none: as offload.level says.
        parameters: Option<StateTier> = None, TIER, Implemented;
        /// Where gradients lie once they are reduced, in every micro-batch. none: as offload.level says.
        gradients: Option<StateTier> = None, TIER, Implemented;
        /// Where the optimizer's state lies; the update runs there. none: as offload.level says.
        optimizer_state: Option<StateTier> = None, TIER, Implemented;
        /// The bytes of the device that a rank may use for parameters, gradients and optimizer state, with what their
        /// reduction and update take: what the plan needs of these is compared with it before the first step. Activations
        /// are not counted but by a search of layouts, as they are not known then, and what is used while a run goes on is
        /// not watched. none: it is not compared.
        device_bytes: Option<u64> = None, ValueKind::Or(NONE, &ValueKind::at_least(1)), Implemented;
        /// The folder for files; they have no names, and are gone when the run ends. Empty: the system's for
        /// temporary files.
        folder: String = String::new(), ValueKind::Text, Implemented;
        /// The bytes of files that a rank maps into memory at a time.
        resident_bytes: u64 = 1 << 28, ValueKind::at_least(1), Implemented;
    }
    /// Mixed precision.
    amp: AmpConfig {
        /// O1: mixed precision; weights are cast only while they are used.
        level: AmpLevel = AmpLevel::Off, ValueKind::Choice(AmpLevel::WORDS), Implemented;
        /// The 16-bit type. bf16 needs no loss scale.
        dtype: HalfDtype = HalfDtype::F16, ValueKind::Choice(HalfDtype::WORDS), Implemented;
        /// "dynamic" (32768 at first, doubled after 2000 good steps, halved and the step skipped on
        /// a non-finite gradient; with bf16 always 1), or a fixed number.
        loss_scale: LossScale = LossScale::Dynamic,
            ValueKind::Or(LossScale::DYNAMIC, &ValueKind::NumberAtLeast(1.0)), Implemented;
        /// Parameters that stay in f32, by their paths, in which `*` stands for any one name and `**` for any number of them:
        /// "head", "layers.*.norm", or "**.norm". A path covers all below it. Layers of `epl::nn` bring what they get to
        /// the type of what they have; a segment with such a parameter of another layer, as one of Burn's, and one all of
        /// whose parameters stay, computes in f32, and gets its carry and its batch so. none: as the layers say.
        full_precision: Option<Vec<String>> = None, ValueKind::Or(NONE, &ValueKind::Words), Implemented;
        /// Log the type in which each parameter is computed with.
        debug_log: bool = false, ValueKind::Switch, Implemented;
    }
    /// The update of the parameters.
    optimizer: OptimizerConfig {
        /// Parameters are updated in this many groups, one after the other, to lower the peak of memory. A bucket that is
        /// sharded or lies away from the device is updated by itself, however few these are.
        num_apply_group: usize = 1, COUNT, Implemented;
        /// Leave these parameters as they are: without gradient, without state (running statistics of a BatchNorm move as before). Paths, of which `*` is any one name and `**`
        /// any number of them; each covers what is below it, too. One that covers nothing is an error, here and in the next
        /// two.
        frozen: Vec<String> = Vec::new(), ValueKind::Words, Implemented;
        /// Multiply the learning rate of these parameters; of several paths that cover one the last decides. The three come
        /// behind the parameter groups of the program.
        rate_factor: Vec<PathNumber> = Vec::new(), ValueKind::PathNumbers, Implemented;
        /// The weight decay of these parameters, in the place of the optimizer's, such as none for norms and biases; of several
        /// paths that cover one the last decides. An optimizer that has none refuses it.
        weight_decay: Vec<PathNumber> = Vec::new(), ValueKind::PathNumbers, Implemented;
    }
    /// Which devices are used, and for what.
    cluster: ClusterConfig {
        /// Keep one replica inside a worker. false: devices are taken across workers first.
        device_place_prefer_intra_node: bool = true, ValueKind::Switch, Implemented;
        /// Use only these GPUs of each worker, such as "0,4,7", as their numbers are in the worker; empty: all. An error on
        /// the host.
        run_visible_devices: String = String::new(), ValueKind::DeviceList, Implemented;
        /// All task graphs share the same devices.
        colocate_split_and_replicate: bool = false, ValueKind::Switch, Implemented;
        /// Ranks of this process, each a thread. none: as many as dist.* needs; among several processes, as many as their
        /// launcher says, or 1.
        ranks: Option<usize> = None, MAYBE_SIZE, Implemented;
        /// Memory of the host that a step frees stays with the process for the next one, in place of going back to the
        /// system, which clears it anew. glibc's allocator is told so, for all of the process and from then on, unless
        /// GLIBC_TUNABLES or a variable of mallopt(3) says something of it; threads that ran before it was told keep
        /// heaps of their own. Other allocators decide by themselves.
        keep_freed_memory: bool = true, ValueKind::Switch, Implemented;
    }
    /// How gradients travel between ranks.
    communication: CommunicationConfig {
        /// What carries data between ranks. auto: threads of this process, or NCCL where each has a GPU; where `epl-launch`,
        /// `mpirun`, torchrun or `srun` has started several processes, what that says. mpi needs the feature of that name,
        /// nccl the feature cuda.
        transport: TransportChoice = TransportChoice::Auto, ValueKind::Choice(TransportChoice::WORDS), Implemented;
        /// Reductions of gradients that may be in flight together, over each axis that has any; no more than there are
        /// cores for. Where gradients are reduced in every micro-batch (zero.level v2 and v3, offloaded gradients), one is.
        num_communicators: usize = 2, COUNT, Implemented;
        /// true: gradients of embeddings travel whole. false: as the rows that are not zero, in every step in which
        /// that is fewer bytes; whole, too, where gradients are sharded (zero.level v1 to v3) or offloaded.
        sparse_as_dense: bool = false, ValueKind::Switch, Implemented;
        /// At most this many buckets of gradients, never fewer than there are pairs of dtype and axis (1: one for each
        /// pair); beside them one for each embedding, unless `sparse_as_dense`. Where parameters are gathered (zero.level
        /// v3, offloaded parameters), there is one for each segment and pair instead.
        max_splits: usize = 5, COUNT, Implemented;
        /// Send gradients in 16 bits. Changes the result.
        fp16: bool = false, ValueKind::Switch, Implemented;
        /// Their type, with `fp16`.
        fp16_dtype: HalfDtype = HalfDtype::F16, ValueKind::Choice(HalfDtype::WORDS), Implemented;
        /// Factor before the cast to 16 bits, with `fp16`; sums are divided by it again.
        fp16_scale: f64 = 128.0, ValueKind::NumberAbove(0.0), Implemented;
        /// With `train.clip_norm`. true: the reduced gradient is clipped by the global norm, whatever the layout. false:
        /// each replica clips its own gradient of the whole step by its own norm before they are reduced, as EPL does; the
        /// result depends on the number of replicas. No reduction goes on beside backward then, gradients are whole until
        /// the last one (zero.level v2 is v1), and v3 and offloaded gradients are refused.
        clip_after_allreduce: bool = true, ValueKind::Switch, Implemented;
        /// mean: the gradient of Σ sum ÷ Σ weight over all micro-batches and replicas. sum: the
        /// gradient of Σ sum, undivided.
        gradients_reduce_method: ReduceMethod = ReduceMethod::Mean,
            ValueKind::Choice(ReduceMethod::WORDS), Implemented;
        /// Seconds that a rank waits for others in one collective; then the run fails and names the ranks that did not
        /// come, and what they did last.
        time_limit: Option<f64> = Some(1800.0), ValueKind::Or(NONE, &ValueKind::NumberAbove(0.0)), Implemented;
        /// Compare the order in which ranks make the calls of all their groups; another order is an error even where
        /// it would come to a good end.
        check_order: bool = false, ValueKind::Switch, Implemented;
        /// Over NCCL between processes: compare every call with those of the other ranks before it is made, which takes
        /// some round trips for each. false: the first 32 calls of each group, and all before the first update. Elsewhere
        /// every call is compared anyway.
        check_calls: bool = false, ValueKind::Switch, Implemented;
    }
    /// Input files, and how data is loaded.
    io: IoConfig {
        /// Divide the list of input files over the replicas, for data of `SlicedFiles`. Files that do not divide are read
        /// by all replicas, with a warning, but for the next two options. No sample is drawn twice in either case.
        slicing: bool = false, ValueKind::Switch, Implemented;
        /// With `slicing`: some replicas may take one file more.
        unbalanced_io_slicing: bool = false, ValueKind::Switch, Implemented;
        /// With `slicing`: drop the last files, those that do not divide; with unbalanced_io_slicing too, none.
        drop_last_files: bool = false, ValueKind::Switch, Implemented;
        /// Rows of a training batch are divided over the replicas in proportion to these whole numbers, one for each: the larger
        /// ones for faster devices. Where batch sizes say what a replica runs at a time, that is the mean. none: evenly.
        row_weights: Option<Vec<usize>> = None, ValueKind::Or(NONE, &ValueKind::Integers), Implemented;
        /// Threads of each rank that load the steps of training.
        num_workers: usize = 1, COUNT, Implemented;
        /// Steps that each of them may load ahead, the one included that it is at.
        prefetch: usize = 2, COUNT, Implemented;
    }
    /// What EPL chooses by itself.
    auto: AutoConfig {
        /// Choose what is not given: with pipeline.num_stages, the stages; without, the whole layout, by a search. What a file gives at
        /// its default is chosen, too, as saved configurations have all options: elsewhere it counts as given. No scope may be opened
        /// then.
        auto_parallel: bool = false, ValueKind::Switch, Implemented;
        /// By how much the search takes an estimate of a device's memory to be too low, as a part of it: 0.09 is 9 %. With a bound of
        /// that memory, such as offload.device_bytes.
        margin: f64 = 0.09, ValueKind::NumberAtLeast(0.0), Implemented;
        /// A file with what the search measured: read where it is of this program, these ranks and this model, else written. Empty:
        /// none.
        calibration: String = String::new(), ValueKind::Text, Implemented;
        /// So many of the best layouts that the search finds are run for some steps, and the fastest is taken. 0: none, the best
        /// prediction is.
        measure: usize = 0, ValueKind::at_least(0), Implemented;
        /// How fast the devices are beside each other, by rank, as whole numbers such as [2, 2, 1, 1]: a search divides rows over
        /// replicas and layers over stages by it. none: as measured.
        speeds: Option<Vec<usize>> = None, ValueKind::Or(NONE, &ValueKind::Integers), Implemented;
        /// Look, in f64 and on rows of the data, for segments of layers that know nothing of the tensor axis and can run in slices over
        /// it, and cut these: under the dist.tensor_parallel_size that is given, and in a search for each that may be chosen.
        discover: bool = false, ValueKind::Switch, Implemented;
    }
    /// The mesh: world = data × pipeline × tensor, and expert divides data.
    dist: DistConfig {
        /// Replicas; none: ranks ÷ (tensor × pipeline).
        data_parallel_size: Option<usize> = None, MAYBE_SIZE, Implemented;
        /// Ranks that share each split layer.
        tensor_parallel_size: usize = 1, SIZE, Implemented;
        /// Layers that are whole on each tensor rank, though they could be divided: their paths, as `Place::child` makes them, and all
        /// below, with `*` for any name and `**` for any number of them, such as "**.feed_forward". Each rank computes all of such a
        /// layer, and sends none of it. none: all that can be are divided.
        whole_layers: Option<Vec<String>> = None, ValueKind::Or(NONE, &ValueKind::Words), Implemented;
        /// Stages of a replica.
        pipeline_parallel_size: usize = 1, SIZE, Implemented;
        /// Data ranks that share the experts; divides data_parallel_size.
        expert_parallel_size: usize = 1, SIZE, Implemented;
        /// Layers that are spread evenly over the stages: those that `Place::with_layer_idx` numbers, else the model's
        /// segments. none: as many as there are numbers, else the stages are chosen.
        pipeline_num_layers: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// The stage of each layer: of those that `Place::with_layer_idx` numbers, else of each segment of the model.
        custom_pipeline_stage_id: Option<Vec<usize>> = None,
            ValueKind::Or(NONE, &ValueKind::Integers), Implemented;
        /// Order in which ranks are numbered, slowest axis first: EPL's "data,pipeline,tensor" or
        /// LiBai's "pipeline,data,tensor".
        order: RankOrder = RankOrder::DataPipelineTensor,
            ValueKind::Choice(RankOrder::WORDS), Implemented;
    }
    /// Seeing what a run does.
    profile: ProfileConfig {
        /// Write what every rank does when to this file, for Perfetto or chrome://tracing, where ranks are launched.
        /// Empty: do not.
        trace: String = String::new(), ValueKind::Text, Implemented;
        /// With `profile.trace`: steps before those that are traced; the first one is slower.
        trace_skip: usize = 1, ValueKind::at_least(0), Implemented;
        /// With `profile.trace`: how many steps are traced.
        trace_steps: usize = 5, COUNT, Implemented;
        /// Measure in the first step what each segment stores for backward and how long it takes. The trainer prints it;
        /// `Engine::profiled` has it.
        segments: bool = false, ValueKind::Switch, Implemented;
        /// What a rank's device can reach, in 10¹² floating-point operations a second (bf16 on an H100: 989). The trainer's
        /// progress then says which part of it a step makes (MFU).
        peak_tflops: Option<f64> = None, ValueKind::Or(NONE, &ValueKind::NumberAbove(0.0)), Implemented;
    }
    /// The training run.
    train: TrainConfig {
        /// Samples that one replica runs at a time. With train.global_batch_size and
        /// pipeline.num_micro_batch, any two give the third.
        micro_batch_size: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// Samples of one step, over all replicas and micro-batches.
        global_batch_size: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// Where everything random starts: initial values, order of the data, masks.
        seed: u64 = 0, ValueKind::at_least(0), Implemented;
        /// Clip the gradient to this global norm; none: do not clip.
        clip_norm: Option<f64> = None, ValueKind::Or(NONE, &ValueKind::NumberAbove(0.0)), Implemented;
        /// Stop and save after this many steps; none: after schedule.steps. The schedule does not
        /// change with it.
        steps: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// Evaluate after every so many steps; none: only at the end.
        eval_every: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// Save after every so many steps; none: only at the end.
        save_every: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// How many of the last checkpoints are kept, up to the one just saved.
        keep_last: usize = 2, COUNT, Implemented;
        /// The folder of the run, with its checkpoints, `metrics.jsonl` and `loss.svg`; of several hosts one that all see. Empty:
        /// nothing is written, unless the program names a folder.
        out: String = String::new(), ValueKind::Text, Implemented;
        /// Whether the run goes on from the latest checkpoint in its folder: never; auto, if there is one; latest, and without one
        /// it ends with an error.
        resume: ResumeMode = ResumeMode::Never, ValueKind::Choice(ResumeMode::WORDS), Implemented;
        /// With train.resume = latest: the run goes back to the checkpoint of this step, which, if the run saves, is the
        /// latest from then on, and later ones are removed as the run comes by. none: to the latest.
        resume_step: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// Write each step's numbers as events of TensorBoard, too: into the folder `tensorboard` of the run.
        tensorboard: bool = false, ValueKind::Switch, Implemented;
    }
    /// The learning rate: a warm-up, then one of the usual shapes.
    schedule: ScheduleConfig {
        /// What follows the warm-up.
        kind: ScheduleKind = ScheduleKind::Constant, ValueKind::Choice(ScheduleKind::WORDS), Implemented;
        /// The rate at the end of the warm-up, the largest; with noam a factor: the largest is rate ÷ √(model_size ·
        /// warmup_steps).
        rate: f64 = 1e-3, ValueKind::NumberAtLeast(0.0), Implemented;
        /// The rate rises in a straight line over this many steps.
        warmup_steps: usize = 0, ValueKind::at_least(0), Implemented;
        /// Length of the schedule with its warm-up; linear, cosine and polynomial need it. Independent of
        /// train.steps.
        steps: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// The rate never falls below this after the warm-up; linear, cosine and polynomial end here.
        min_rate: f64 = 0.0, ValueKind::NumberAtLeast(0.0), Implemented;
        /// What the rate is multiplied by, at most 1: with step and multi_step from one step to the next, 0.1 if not given;
        /// with exponential in each step, which needs it.
        gamma: Option<f64> = None, ValueKind::Or(NONE, &ValueKind::NumberAbove(0.0)), Implemented;
        /// With step: the steps from one multiplication to the next, counted from the end of the warm-up.
        every: Option<usize> = None, MAYBE_COUNT, Implemented;
        /// With multi_step: the steps at which the rate is multiplied, ascending, counted with the warm-up.
        milestones: Vec<usize> = Vec::new(), ValueKind::Integers, Implemented;
        /// With polynomial: the power; 1 is a straight line.
        power: f64 = 1.0, ValueKind::NumberAbove(0.0), Implemented;
        /// With noam: the model's width, whose square root the rate is divided by.
        model_size: Option<usize> = None, MAYBE_COUNT, Implemented;
    }
}
