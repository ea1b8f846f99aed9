package testserver

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// What the forwarder needs to know of the MySQL protocol. A packet is a length
// of three bytes, a sequence number and a payload. A client's packet with
// sequence number 0 is a command, and the packet that answers it has 1;
// whatever belongs to the login counts on from the server's greeting and so
// never looks like a command.
const (
	headerBytes = 4

	commandQuit    = 0x01
	commandQuery   = 0x03
	commandPrepare = 0x16

	replyOK    = 0x00
	replyError = 0xff

	// tlsRequestBytes is the length of a client's first packet when it is not
	// the login but asks to go on in TLS.
	tlsRequestBytes = 32
)

// packet is one packet with its header.
type packet []byte

func (p packet) sequence() byte  { return p[3] }
func (p packet) payload() []byte { return p[headerBytes:] }

// command returns the first byte of a command, and false when p is none.
func (p packet) command() (byte, bool) {
	if p.sequence() != 0 || len(p.payload()) == 0 {
		return 0, false
	}
	return p.payload()[0], true
}

// readPacket reads one packet. A server may send one of 16 MB in pieces; each
// piece counts as a packet here.
func readPacket(r *bufio.Reader) (packet, error) {
	head, err := r.Peek(headerBytes)
	if err != nil {
		return nil, err
	}
	size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	p := make(packet, headerBytes+size)
	if _, err := io.ReadFull(r, p); err != nil {
		return nil, err
	}
	return p, nil
}

// Answer is what a server said to a statement, from its first packet.
type Answer struct {
	// Error is the number of the server's error, 0 when it made none.
	Error uint16

	// Rows is how many rows the statement has changed, or matched when the
	// client asked to count so; 0 when it returns rows.
	Rows uint64
}

// parseAnswer reads the answer out of a reply's first packet.
func parseAnswer(p packet) Answer {
	body := p.payload()
	if len(body) == 0 {
		return Answer{}
	}
	switch body[0] {
	case replyError:
		if len(body) < 3 {
			return Answer{Error: ^uint16(0)}
		}
		return Answer{Error: binary.LittleEndian.Uint16(body[1:])}
	case replyOK:
		return Answer{Rows: lengthEncoded(body[1:])}
	default:
		return Answer{}
	}
}

// lengthEncoded reads the protocol's integer of variable length; 0 when it is
// cut short.
func lengthEncoded(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	width := map[byte]int{0xfc: 2, 0xfd: 3, 0xfe: 8}[b[0]]
	if width == 0 {
		return uint64(b[0])
	}
	if len(b) < 1+width {
		return 0
	}
	var full [8]byte
	copy(full[:], b[1:1+width])
	return binary.LittleEndian.Uint64(full[:])
}

// errClosed says that the forwarder was closed under a waiting test.
var errClosed = errors.New("the forwarder is closed")
