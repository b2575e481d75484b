//! Compiles the kernels, the kernels of the tests and the emulator with the system's C++ compiler into `libcuda.so`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Named so that a test can tell a stand-in from the real driver by its file name alone.
const LIBRARY: &str = "libcuda.so";

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let kernels = here.parent().expect("the package lies in kernels/").to_path_buf();
    let sanitizer = sanitizer();

    let mut objects = Vec::new();
    let mut own = compiler(&kernels, sanitizer);
    own.files(sources(&here.join("device"), "cpp"));
    own.files(sources(&here.join("driver"), "cpp"));
    objects.extend(own.compile_intermediates());

    let mut twins = compiler(&kernels, sanitizer);
    // A .cu file is C++ here; the compiler would not know it by its name.
    twins.flag("-x").flag("c++").flag("-Wno-unknown-pragmas");
    if sanitizer == Sanitizer::None {
        // Not for ThreadSanitizer, whose library is not linked: device/instrument.cpp has what the compiler then calls.
        twins.flag("-fsanitize=thread");
    }
    twins.files(sources(&kernels, "cu"));
    twins.files(sources(&here.join("tests/kernels"), "cu"));
    objects.extend(twins.compile_intermediates());

    for folder in [kernels.clone(), here.join("device"), here.join("driver"), here.join("tests/kernels")] {
        watch(&folder);
    }

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("driver");
    fs::create_dir_all(&out).expect("OUT_DIR can be written");
    let library = out.join(LIBRARY);
    link(&own, &objects, sanitizer, &library);
    let also = out.join("libcuda.so.1");
    _ = fs::remove_file(&also);
    #[cfg(unix)]
    std::os::unix::fs::symlink(LIBRARY, &also).expect("OUT_DIR can be written");
    println!("cargo:rustc-env=EMULATOR_LIBRARY={}", library.display());
    println!("cargo:rustc-env=EMULATOR_SANITIZER_RUNTIME={}", runtime(&own, sanitizer));
}

#[derive(Clone, Copy, PartialEq)]
enum Sanitizer {
    None,
    Address,
}

fn sanitizer() -> Sanitizer {
    println!("cargo:rerun-if-env-changed=PAGED_KV_EMULATOR_SANITIZE");
    match env::var("PAGED_KV_EMULATOR_SANITIZE").as_deref() {
        Ok("address") => Sanitizer::Address,
        Ok("") | Err(_) => Sanitizer::None,
        Ok(other) => panic!("PAGED_KV_EMULATOR_SANITIZE may be `address`, not `{other}`"),
    }
}

fn compiler(kernels: &Path, sanitizer: Sanitizer) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).debug(true).pic(true).warnings(true).extra_warnings(true);
    // Tests name functions by what the driver exports; everything else stays inside, also where the process holds
    // another library with the same names.
    build.flag("-fvisibility=hidden");
    // Kernels read bytes as whatever they hold, and must not gain precision that the device does not have.
    build.flag("-fno-strict-aliasing").flag("-ffp-contract=off");
    build.define("PK_HOST_EMU", None).include(kernels);
    if has_vectors() {
        // Only for speed: the products of matrices and the conversions of f16.
        build.flag("-march=x86-64-v3");
    }
    if sanitizer == Sanitizer::Address {
        build
            .flag("-fsanitize=address,undefined")
            .flag("-fno-sanitize-recover=undefined")
            .flag("-fno-omit-frame-pointer");
    }
    build
}

/// Whether this machine, which runs the tests too, has what x86-64-v3 asks for.
fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("f16c")
        && std::is_x86_feature_detected!("bmi2")
        && std::is_x86_feature_detected!("lzcnt")
        && std::is_x86_feature_detected!("movbe");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// The files of a folder with an ending, in a fixed order.
fn sources(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a folder that can be listed").path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    files
}

/// Builds again when a source changes, comes or goes.
fn watch(folder: &Path) {
    println!("cargo:rerun-if-changed={}", folder.display());
    for ending in ["cu", "cuh", "h", "cpp"] {
        for file in sources(folder, ending) {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    }
}

fn link(build: &cc::Build, objects: &[PathBuf], sanitizer: Sanitizer, library: &Path) {
    let mut command = build.get_compiler().to_command();
    command.arg("-shared").args(objects).arg("-o").arg(library);
    // cudarc asks for `libcuda.so`; a library already loaded answers to its SONAME.
    command.arg(format!("-Wl,-soname,{LIBRARY}"));
    command.args(["-ldl", "-lpthread"]);
    if sanitizer == Sanitizer::None {
        command.arg("-Wl,-z,defs");
    }
    let status = command.status().expect("the C++ compiler runs");
    assert!(status.success(), "linking {} failed: {status}", library.display());
}

/// What must be loaded before anything else for the sanitizer to work; empty if nothing must.
fn runtime(build: &cc::Build, sanitizer: Sanitizer) -> String {
    if sanitizer == Sanitizer::None {
        return String::new();
    }
    let mut command = build.get_compiler().to_command();
    let output = command.arg("-print-file-name=libasan.so").output().expect("the C++ compiler runs");
    String::from_utf8(output.stdout).expect("a path in UTF-8").trim().to_owned()
}
