//! What ends the process, tried in a child: this program again, with one test and a variable that says so.
#![allow(unsafe_code)]

mod common;

use std::process::{Command, Output};

use common::{begin, context, function, launch, shape};
use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};

#[repr(C)]
#[derive(Clone, Copy)]
struct Fault {
    data: u64,
    mode: i32,
    unused: i32,
}

// SAFETY: plain numbers, as the kernel has them.
unsafe impl DeviceRepr for Fault {}

const CHILD: &str = "EMULATOR_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn child(test: &str, options: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .env("PAGED_KV_EMULATOR", options)
        .output()
        .unwrap()
}

#[test]
fn the_host_may_not_touch_device_memory() {
    const NAME: &str = "the_host_may_not_touch_device_memory";
    if is_child() {
        cuda_emulator::load();
        let (_context, stream) = context();
        let data: CudaSlice<u32> = stream.alloc_zeros(100).unwrap();
        stream.synchronize().unwrap();
        let address = (data.device_ptr(&stream).0 + 4) as *const u32;
        // SAFETY: none: that is what is tested. Without the guard the memory is there.
        let value = unsafe { address.read_volatile() };
        assert_eq!(value, 0);
        return;
    }
    let guarded = child(NAME, "");
    let says = String::from_utf8_lossy(&guarded.stderr).into_owned();
    assert!(!guarded.status.success(), "{says}");
    assert!(says.contains("the host touched device memory"), "{says}");
    assert!(says.contains("byte 4 of an allocation of 400 bytes"), "{says}");
    let open = child(NAME, "guard=0");
    assert!(open.status.success(), "{}", String::from_utf8_lossy(&open.stderr));
}

#[test]
fn address_sanitizer_sees_the_byte_behind_shared_memory() {
    const NAME: &str = "address_sanitizer_sees_the_byte_behind_shared_memory";
    if cuda_emulator::sanitizer_runtime().is_none() {
        return;
    }
    if is_child() {
        let _turn = begin("");
        let (context, stream) = context();
        let function = function::<Fault>(&context, "test_shared_byte");
        launch(&stream, &function, shape(1, 1, 100), &Fault { data: 0, mode: 100, unused: 0 });
        _ = stream.synchronize();
        return;
    }
    let output = child(NAME, "");
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{says}");
    assert!(says.contains("heap-buffer-overflow") && says.contains("faulty.cu"), "{says}");
}
