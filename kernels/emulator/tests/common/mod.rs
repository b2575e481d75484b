//! What the tests share: one at a time, options that begin afresh, modules with headers written for the occasion.
#![allow(dead_code, unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DeviceRepr, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

/// The options of the emulator are the process's, so tests that hold this exclude each other.
pub(crate) struct Turn {
    _lock: MutexGuard<'static, ()>,
}

/// Begins a test with these options and no others.
pub(crate) fn begin(options: &str) -> Turn {
    static LOCK: Mutex<()> = Mutex::new(());
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    cuda_emulator::load();
    configure(options);
    Turn { _lock: lock }
}

/// All options afresh; no message and no error is left. Messages are for `report`, not for the terminal.
pub(crate) fn configure(options: &str) {
    cuda_emulator::configure(&format!("reset,quiet=1,{options}"));
}

pub(crate) fn context() -> (Arc<CudaContext>, Arc<CudaStream>) {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    (context, stream)
}

/// A module whose one entry takes one block of parameters of this size.
pub(crate) fn ptx(version: &str, target: &str, name: &str, bytes: usize) -> Ptx {
    Ptx::from_src(format!(
        ".version {version}\n.target {target}\n.address_size 64\n\
         .visible .entry {name}(\n    .param .align 8 .b8 {name}_param_0[{bytes}]\n)\n{{\n    ret;\n}}\n"
    ))
}

pub(crate) fn module<P>(context: &Arc<CudaContext>, name: &str) -> Arc<CudaModule> {
    context.load_module(ptx("8.0", "sm_80", name, size_of::<P>())).unwrap()
}

pub(crate) fn function<P>(context: &Arc<CudaContext>, name: &str) -> CudaFunction {
    module::<P>(context, name).load_function(name).unwrap()
}

pub(crate) fn shape(blocks: u32, threads: u32, shared_mem_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes }
}

/// Launches a kernel with one struct of parameters. If work runs at once, so does the kernel, and its error comes back.
pub(crate) fn launch_result<P: DeviceRepr>(
    stream: &Arc<CudaStream>,
    function: &CudaFunction,
    shape: LaunchConfig,
    parameters: &P,
) -> Result<(), DriverError> {
    let mut builder = stream.launch_builder(function);
    builder.arg(parameters);
    // SAFETY: kernels may do anything here: that is what is tested.
    unsafe { builder.launch(shape) }.map(|_| ())
}

/// The same where what matters comes later.
pub(crate) fn launch<P: DeviceRepr>(
    stream: &Arc<CudaStream>,
    function: &CudaFunction,
    shape: LaunchConfig,
    parameters: &P,
) {
    _ = launch_result(stream, function, shape, parameters);
}

/// Every way in which the emulator lets things happen: order of threads, when copies land, when work runs.
pub(crate) fn every_order() -> Vec<String> {
    let mut all = Vec::new();
    for schedule in ["lazy", "eager", "2", "3", "4", "5"] {
        for order in ["forward", "reverse", "2", "3", "4"] {
            for copies in ["late", "early", "seeded"] {
                all.push(format!("schedule={schedule},order={order},copies={copies}"));
            }
        }
    }
    all
}
