//! The GPU: its memory, its clock, and the pass that only reads.

use std::sync::Arc;

use paged_kv::storage::CudaStorage;
use paged_kv::storage::cudarc::driver::sys;
use paged_kv::storage::cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaGraph, CudaStream, LaunchConfig, PushKernelArg, result,
};
use paged_kv::storage::cudarc::nvrtc::Ptx;

use crate::error::Error;

/// As `pk_read_params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Read {
    data: u64,
    count: i64,
    out: u64,
    never: u32,
    unused: u32,
}

// SAFETY: plain numbers, in the order in which the kernel has them.
unsafe impl paged_kv::storage::cudarc::driver::DeviceRepr for Read {}

/// A GPU, and memory that all pools of the run lie in, one after the other.
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    /// Address and bytes of the memory.
    pub(crate) memory: u64,
    pub(crate) bytes: u64,
    read: CudaFunction,
}

impl Device {
    /// The first GPU, with so many GiB, or three quarters of what is free.
    pub(crate) fn open(gib: Option<f64>) -> Result<Self, Error> {
        CudaStorage::probe()?;
        let context = CudaContext::new(0)?;
        // One stream does everything, so that `cudarc` need not watch who uses what.
        let stream = context.new_stream()?;
        let free = context.mem_get_info()?.0 as u64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some GiB")]
        let bytes = gib.map_or(free / 4 * 3, |gib| (gib * f64::from(1 << 30)) as u64) / 4096 * 4096;
        if bytes < 1 << 16 || bytes > free {
            return Err(Error::Pool(bytes as f64 / f64::from(1 << 30)));
        }
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: not of no bytes; the context is current. It is given back with the process.
        let memory = unsafe { result::malloc_sync(len) }?;
        // Numbers of usual size in all types: 0.01 in bf16, 1.5 in E4M3.
        // SAFETY: so many bytes were just allocated.
        unsafe { result::memset_d8_sync(memory, 0x3c, len) }?;
        context.synchronize()?;
        let module = context.load_module(Ptx::from_src(include_str!("../../../kernels/ptx/read.ptx")))?;
        let read = module.load_function("pk_read")?;
        Ok(Self { context, stream, memory, bytes, read })
    }

    /// Enqueues a pass over the first `bytes` of the memory.
    pub(crate) fn read(&self, bytes: u64) -> Result<(), Error> {
        let count = i64::try_from(bytes.min(self.bytes) / 16).unwrap_or(i64::MAX);
        let params = Read { data: self.memory, count, out: self.memory, never: 1, unused: 0 };
        let shape = LaunchConfig { grid_dim: (1056, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.read);
        launch.arg(&params);
        // SAFETY: the kernel reads so many times 16 bytes of the memory; what it may write is the first word of it.
        unsafe { launch.launch(shape) }?;
        Ok(())
    }

    /// Captures work in a graph.
    pub(crate) fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<CudaGraph, Error> {
        self.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let done = work();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags);
        done?;
        Ok(graph?.expect("a capture that was ended has a graph"))
    }

    fn mark(&self) -> Result<CudaEvent, Error> {
        Ok(self.stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    /// The median of the seconds that some work takes, `rounds` times after one that is not counted.
    pub(crate) fn time(&self, rounds: usize, mut work: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        work()?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let from = self.mark()?;
            work()?;
            let to = self.mark()?;
            self.stream.synchronize()?;
            times.push(f64::from(from.elapsed_ms(&to)?) / 1000.0);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[rounds / 2])
    }
}
