package sqlite

// networkFS returns the name of the network or shared-disk file system with
// that statfs magic number, and "" for any other.
//
// On these SQLite's locks and its shared memory do not reach across machines,
// or not reliably, so two machines could both hold a lock. FUSE is among them
// because the kernel does not say what is behind it.
func networkFS(magic int64) string {
	switch uint32(magic) { // some are negative where the kernel's field is 32 bits wide
	case 0x6969:
		return "NFS"
	case 0x517B, 0xFE534D42:
		return "SMB"
	case 0xFF534D42:
		return "CIFS"
	case 0x65735546:
		return "FUSE"
	case 0x01021997:
		return "9p"
	case 0x00C36400:
		return "Ceph"
	case 0x5346414F, 0x6B414653:
		return "AFS"
	case 0x0BD00BD0:
		return "Lustre"
	case 0x47504653:
		return "GPFS"
	case 0x73757245:
		return "Coda"
	case 0x564C:
		return "NCP"
	case 0x01161970:
		return "GFS2"
	case 0x7461636F:
		return "OCFS2"
	case 0x19830326:
		return "BeeGFS"
	case 0x20030528:
		return "OrangeFS"
	case 0xAAD7AAEA:
		return "PanFS"
	case 0x786F4256:
		return "VirtualBox shared folder"
	case 0xBACBACBC:
		return "VMware shared folder"
	}
	return ""
}
