//! Correct programs pass in every order.
#![allow(unsafe_code)]

mod common;

use common::{begin, configure, context, every_order, function, launch, shape};
use cudarc::driver::{DevicePtr, DeviceRepr};

#[repr(C)]
#[derive(Clone, Copy)]
struct Sum {
    input: u64,
    output: u64,
}

// SAFETY: plain numbers, as the kernel has them.
unsafe impl DeviceRepr for Sum {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Product {
    a: u64,
    b: u64,
    c: u64,
}

// SAFETY: as above.
unsafe impl DeviceRepr for Product {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Ring {
    input: u64,
    output: u64,
    steps: i32,
}

// SAFETY: as above.
unsafe impl DeviceRepr for Ring {}

#[repr(C)]
#[derive(Clone, Copy)]
struct Operations {
    input: u64,
    output: u64,
    mode: i32,
    unused: i32,
}

// SAFETY: as above.
unsafe impl DeviceRepr for Operations {}

fn sums_of(kernel: &str, shared_bytes: u32) -> Vec<f32> {
    let (context, stream) = context();
    let function = function::<Sum>(&context, kernel);
    // Whole numbers below 2^24 add up exactly in any order.
    let input: Vec<f32> = (0..5 * 128).map(|i| i as f32).collect();
    let input = stream.clone_htod(&input).unwrap();
    let output = stream.alloc_zeros::<f32>(5).unwrap();
    let parameters = Sum { input: input.device_ptr(&stream).0, output: output.device_ptr(&stream).0 };
    launch(&stream, &function, shape(5, 128, shared_bytes), &parameters);
    stream.clone_dtoh(&output).unwrap()
}

#[test]
fn sums_are_right_in_every_order() {
    let _turn = begin("");
    // 128 b * 128 + (0 + ... + 127)
    let expected: Vec<f32> = (0..5).map(|block| (block * 128 * 128 + 127 * 128 / 2) as f32).collect();
    for order in every_order() {
        configure(&order);
        assert_eq!(sums_of("test_sum", 512), expected, "{order}");
        assert_eq!(sums_of("test_sum_warps", 16), expected, "{order}");
        assert_eq!(cuda_emulator::report(), "", "{order}");
    }
}

/// bf16 of a small whole number, which is exact: the upper half of f32.
fn bf16(value: i32) -> u16 {
    u16::try_from((value as f32).to_bits() >> 16).unwrap()
}

#[test]
fn products_are_right_in_every_order() {
    let _turn = begin("");
    let a: Vec<i32> = (0..16 * 16).map(|i| i * 7 % 23 - 11).collect();
    let b: Vec<i32> = (0..8 * 16).map(|i| i * 5 % 19 - 9).collect();
    let expected: Vec<f32> =
        (0..16 * 8).map(|i| (0..16).map(|k| a[i / 8 * 16 + k] * b[i % 8 * 16 + k]).sum::<i32>() as f32).collect();
    let a: Vec<u16> = a.iter().map(|&value| bf16(value)).collect();
    let b: Vec<u16> = b.iter().map(|&value| bf16(value)).collect();
    for order in every_order() {
        configure(&order);
        let (context, stream) = context();
        let function = function::<Product>(&context, "test_product");
        let (a, b) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
        let c = stream.alloc_zeros::<f32>(16 * 8).unwrap();
        let parameters = Product { a: a.device_ptr(&stream).0, b: b.device_ptr(&stream).0, c: c.device_ptr(&stream).0 };
        launch(&stream, &function, shape(1, 32, 768), &parameters);
        assert_eq!(stream.clone_dtoh(&c).unwrap(), expected, "{order}");
        assert_eq!(cuda_emulator::report(), "", "{order}");
    }
}

#[test]
fn rings_of_copies_are_right_in_every_order() {
    let _turn = begin("");
    let steps = 7;
    let input: Vec<f32> = (0..steps * 128).map(|i| i as f32).collect();
    let expected: Vec<f32> = (0..128).map(|i| (0..steps).map(|step| (step * 128 + i) as f32).sum()).collect();
    for order in every_order() {
        configure(&order);
        let (context, stream) = context();
        let function = function::<Ring>(&context, "test_ring");
        let input = stream.clone_htod(&input).unwrap();
        let output = stream.alloc_zeros::<f32>(128).unwrap();
        let parameters = Ring { input: input.device_ptr(&stream).0, output: output.device_ptr(&stream).0, steps };
        launch(&stream, &function, shape(1, 32, 1024), &parameters);
        assert_eq!(stream.clone_dtoh(&output).unwrap(), expected, "{order}");
        assert_eq!(cuda_emulator::report(), "", "{order}");
    }
}

/// What the 32 lanes get from an operation on these values.
fn operate(mode: i32, input: &[u32; 32]) -> Vec<[u32; 4]> {
    let (context, stream) = context();
    let function = function::<Operations>(&context, "test_operations");
    let input = stream.clone_htod(input).unwrap();
    let output = stream.alloc_zeros::<u32>(128).unwrap();
    let parameters =
        Operations { input: input.device_ptr(&stream).0, output: output.device_ptr(&stream).0, mode, unused: 0 };
    launch(&stream, &function, shape(1, 32, 512), &parameters);
    let output = stream.clone_dtoh(&output).unwrap();
    assert_eq!(cuda_emulator::report(), "");
    output.as_chunks::<4>().0.to_vec()
}

/// In every order of lanes.
fn check_operation(mode: i32, input: [u32; 32], expected: impl Fn(u32) -> [u32; 4]) {
    let expected: Vec<[u32; 4]> = (0..32).map(expected).collect();
    for order in every_order() {
        configure(&order);
        assert_eq!(operate(mode, &input), expected, "mode {mode} {order}");
    }
}

/// Two elements of 16 bits in a register.
fn pair(low: u32, high: u32) -> u32 {
    low | high << 16
}

#[test]
fn matrices_lie_in_registers_as_the_manual_says() {
    let _turn = begin("");
    // PTX manual, movmatrix: lane l holds elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1). Element (r, c) here
    // is 8 r + c, so that the transpose has 8 c + r there.
    let matrix = std::array::from_fn(|lane| {
        let lane = u32::try_from(lane).unwrap();
        pair(8 * (lane / 4) + 2 * (lane % 4), 8 * (lane / 4) + 2 * (lane % 4) + 1)
    });
    check_operation(0, matrix, |lane| {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        [pair(8 * column + row, 8 * (column + 1) + row), 0, 0, 0]
    });
    // ldmatrix: register j is of matrix j, whose element (r, c) is 64 j + 8 r + c.
    check_operation(1, [0; 32], |lane| {
        let first = 8 * (lane / 4) + 2 * (lane % 4);
        [0, 64, 128, 192].map(|matrix| pair(matrix + first, matrix + first + 1))
    });
    check_operation(2, [0; 32], |lane| {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        [0, 64, 128, 192].map(|matrix| pair(matrix + 8 * column + row, matrix + 8 * (column + 1) + row))
    });
    // Sixteen products of ones are added to the lane.
    check_operation(5, [0; 32], |lane| [(lane as f32 + 16.0).to_bits(); 4]);
}

#[test]
fn lanes_exchange_and_vote_as_the_manual_says() {
    let _turn = begin("");
    let lanes = std::array::from_fn(|lane| u32::try_from(lane).unwrap());
    check_operation(3, lanes, |lane| {
        [if lane >= 3 { lane - 3 } else { lane }, if lane + 3 < 32 { lane + 3 } else { lane }, lane ^ 5, 9]
    });
    check_operation(4, lanes, |_| [0xaaaa_aaaa, 1, 1, 0]);
}

/// The value of an e4m3 code: sign, exponent of bias 7, three bits of mantissa.
fn e4m3_value(code: u32) -> f64 {
    let (exponent, mantissa) = (code >> 3 & 15, f64::from(code & 7) / 8.0);
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-6),
        _ => (1.0 + mantissa) * 2f64.powi(exponent.cast_signed() - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest code of a magnitude, ties to the even one, by trying all.
fn nearest_e4m3(magnitude: f64) -> u32 {
    (0..=0x7eu32)
        .min_by(|&a, &b| {
            let (from_a, from_b) = ((e4m3_value(a) - magnitude).abs(), (e4m3_value(b) - magnitude).abs());
            from_a.total_cmp(&from_b).then((a & 1).cmp(&(b & 1)))
        })
        .unwrap()
}

#[test]
fn conversions_round_to_the_nearest() {
    let _turn = begin("");
    let mut state = 1u64;
    let mut draw = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 32).unwrap()
    };
    for _ in 0..200 {
        // Numbers of all formats' ranges, ties among them: few bits of mantissa, exponents of 2^-30 to 2^17.
        let input: [u32; 32] = std::array::from_fn(|_| {
            let exponent = 97 + draw() % 48;
            let mask = if draw() & 1 == 0 { 0x007f_ffff } else { 0x007f_f000 & !(0xfff << (draw() % 8)) };
            (draw() & 0x8000_0000) | exponent << 23 | (draw() & mask)
        });
        for (lane, out) in operate(6, &input).into_iter().enumerate() {
            let x = f32::from_bits(input[lane]);
            let f16 = u32::from(half::f16::from_f32(x).to_bits());
            let bf16 = u32::from(half::bf16::from_f32(x).to_bits());
            // What has been rounded once stays.
            assert_eq!(out[0], pair(f16, f16), "f16 of {x:e}");
            assert_eq!(out[1], pair(bf16, bf16), "bf16 of {x:e}");
            let code = nearest_e4m3(f64::from(x.abs()));
            let sign = if x < 0.0 { 0x80 } else { 0 };
            assert_eq!(out[2], (code | sign) | (code | sign ^ 0x80) << 8, "e4m3 of {x:e}");
            for (half, code) in [(out[3] & 0xffff, input[lane] & 0xff), (out[3] >> 16, input[lane] >> 8 & 0xff)] {
                let value = half::f16::from_bits(u16::try_from(half).unwrap()).to_f64();
                match code & 0x7f {
                    0x7f => assert!(value.is_nan()),
                    _ => assert_eq!(value, e4m3_value(code), "code {code:#x}"),
                }
            }
        }
    }
}
