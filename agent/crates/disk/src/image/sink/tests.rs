use super::*;
use crate::image::place::Place;
use ferric_sys::testing::disk::TestDisk;

const RAW: Clusters = Clusters { compression: Compression::Deflate, bytes: 65536 };

fn at(index: usize) -> u64 {
    u64::try_from(index).unwrap()
}

#[test]
fn bytes_in_any_order_and_of_any_length_arrive() {
    let disk = TestDisk::used(16 << 20).unwrap();
    let dev = disk.open().unwrap();
    let target = Target::new(&dev, Place::Disk).unwrap();
    let mut want = vec![0xa5; 16 << 20];
    run(&target, RAW, |sink| {
        for (index, (offset, len)) in
            [(9 << 20, 3 << 20), (1 << 20, 512), ((1 << 20) + 512, 4096), (5 << 20, 7), ((5 << 20) + 7, 1 << 20)]
                .into_iter()
                .enumerate()
        {
            let bytes = vec![u8::try_from(index).unwrap() + 1; len];
            sink.write(at(offset), &bytes)?;
            want[offset..offset + len].copy_from_slice(&bytes);
        }
        sink.zero(3 << 20, 1 << 20)?;
        want[3 << 20..4 << 20].fill(0);
        Ok(())
    })
    .unwrap();
    target.finish().unwrap();
    want[..1 << 20].fill(0);
    want[15 << 20..].fill(0);
    assert!(disk.bytes(0, 16 << 20).unwrap() == want);
}

#[test]
fn writing_ends_at_borders_of_a_buffer_on_the_disk() {
    let mut pool = Pool::new(2);
    let filling = Filling { block: pool.take(), offset: (3 << 20) - 4096, len: 0 };
    assert_eq!(filling.room(), 4096);
    let filling = Filling { block: pool.take(), offset: 3 << 20, len: 4096 };
    assert_eq!(filling.room(), BLOCK_BYTES - 4096);
}

#[test]
fn a_disk_that_fails_stops_the_work_and_is_named() {
    let disk = TestDisk::used(8 << 20).unwrap();
    let dev = disk.open().unwrap();
    let target = Target::new(&dev, Place::Disk).unwrap();
    let mut steps = 0;
    let error = run(&target, RAW, |sink| {
        for step in 0..1000 {
            // From 8 MiB on the disk refuses.
            sink.write(step << 20, &[1; 4096])?;
            steps += 1;
        }
        Ok(())
    })
    .unwrap_err();
    assert!(matches!(error, ImageError::Device { .. }), "{error}");
    assert!(steps < 100, "{steps}");
}

#[test]
fn a_broken_cluster_is_reported_with_its_place() {
    let disk = TestDisk::used(8 << 20).unwrap();
    let dev = disk.open().unwrap();
    let target = Target::new(&dev, Place::Disk).unwrap();
    let error = run(&target, RAW, |sink| sink.unpack(2 << 20, 65536, &[0xff; 512])).unwrap_err();
    let text = ferric_types::error::chain(&error);
    assert!(error.is_content() && text.contains("2097152"), "{text}");
}

#[test]
fn nothing_is_touched_before_the_first_byte() {
    let disk = TestDisk::used(4 << 20).unwrap();
    let dev = disk.open().unwrap();
    let target = Target::new(&dev, Place::Disk).unwrap();
    run(&target, RAW, |_| Ok(())).unwrap();
    assert!(disk.bytes(0, 4 << 20).unwrap().iter().all(|byte| *byte == 0xa5));
}

#[test]
fn pieces_arrive_whether_they_lie_right_for_the_disk_or_not() {
    let disk = TestDisk::used(8 << 20).unwrap();
    let dev = disk.open().unwrap();
    let target = Target::new(&dev, Place::Disk).unwrap();
    let mut pool = Pool::new(1);
    let mut block = pool.take();
    for (index, byte) in block.iter_mut().enumerate() {
        *byte = u8::try_from(index % 251).unwrap();
    }
    let block = Piece::new(block, 0, BLOCK_BYTES);
    let mut want = vec![0xa5; 8 << 20];
    // Place on the disk, place in the block, length: right, short, at an odd place of either, of an odd length.
    let cases = [
        (2 << 20, 4096, 512 << 10),
        (3 << 20, 0, 4096),
        (4 << 20, 3, 100_000),
        ((5 << 20) + 7, 0, 65536),
        (6 << 20, 0, 70_001),
    ];
    run(&target, RAW, |sink| {
        for (offset, from, len) in cases {
            sink.write_piece(at(offset), block.part(from, len))?;
            want[offset..offset + len].copy_from_slice(&block[from..from + len]);
        }
        Ok(())
    })
    .unwrap();
    assert!(target.takes_directly(2 << 20, &block.part(4096, 512 << 10)));
    assert!(!target.takes_directly(2 << 20, &block.part(3, 512 << 10)));
    target.finish().unwrap();
    want[..1 << 20].fill(0);
    want[7 << 20..].fill(0);
    assert!(disk.bytes(0, 8 << 20).unwrap() == want);
}

#[test]
fn more_clusters_than_blocks_of_all_kinds_are_unpacked() {
    let disk = TestDisk::used(64 << 20).unwrap();
    let dev = disk.open().unwrap();
    let target = Target::new(&dev, Place::Disk).unwrap();
    let content = |number: usize| vec![u8::try_from(number).unwrap() + 1; 65536];
    let packed = |number: usize| {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &content(number)).unwrap();
        encoder.finish().unwrap()
    };
    let mut pool = Pool::new(2);
    run(&target, RAW, |sink| {
        for number in 0..200 {
            let (offset, packed) = (at(2 << 20) + at(number) * 65536, packed(number));
            if number % 3 == 0 {
                sink.unpack(offset, 65536, &packed)?;
                continue;
            }
            // Every piece is in a block of its own, of which there are only two.
            let mut block = pool.take();
            block[9..9 + packed.len()].copy_from_slice(&packed);
            sink.unpack_piece(offset, 65536, Piece::new(block, 9, 9 + packed.len()))?;
        }
        Ok(())
    })
    .unwrap();
    for number in 0..200 {
        assert!(disk.bytes((2 << 20) + at(number) * 65536, 65536).unwrap() == content(number), "{number}");
    }
}
