package testserver

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Mode is what a forwarder does with connections.
type Mode int

const (
	// Pass forwards everything.
	Pass Mode = iota

	// Blackhole swallows everything in both directions, on connections that are
	// open already and on new ones, which are accepted and never answered. The
	// end of one side is not told to the other. What was swallowed is lost: a
	// connection that has lost something stays dead after a return to Pass.
	Blackhole

	// Refuse closes the listener, so that new connections are refused. Open
	// ones go on.
	Refuse
)

// patience is how long a test waits for what should have happened long ago.
const patience = 2 * time.Minute

// Match says whether a statement is meant.
type Match func(sql string) bool

// Containing matches statements that contain every one of the words.
func Containing(words ...string) Match {
	return func(sql string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(sql, w) })
	}
}

// Any matches every statement.
func Any(string) bool { return true }

// Statement is one command of a client that carries SQL.
type Statement struct {
	Connection int    // number of its connection, counted from 1
	SQL        string // a prepared statement counts when it is prepared

	// Delivered says that the server was given it; Answered, that the server
	// has begun to answer, whether or not the client could hear it.
	Delivered bool
	Answered  bool
	Answer    Answer
}

// Forwarder passes TCP connections on to a MySQL or MariaDB server, and does to
// them what a test asks. It understands the protocol as far as that is not
// encrypted: in a TLS connection bytes pass, but no statements are seen. Its
// methods may be called from several goroutines.
type Forwarder struct {
	network string
	target  string
	address string
	workers sync.WaitGroup

	mu          sync.Mutex
	changed     chan struct{} // closed and replaced whenever a field below changes
	closed      bool
	listener    net.Listener // nil while Refuse
	mode        Mode
	accepted    int
	commands    int
	resetEvery  int
	toServer    time.Duration
	toClient    time.Duration
	connections []*Connection // open ones
	statements  []*Statement
	traps       []*Trap // armed ones
}

// StartForwarder starts to forward a loopback port to a server; network is
// "tcp" or "unix". The caller must Close it.
func StartForwarder(network, target string) (*Forwarder, error) {
	f := &Forwarder{network: network, target: target, address: "127.0.0.1:0", changed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.listen(); err != nil {
		return nil, err
	}
	return f, nil
}

// NewForwarder is [StartForwarder] for a single test.
func NewForwarder(tb testing.TB, network, target string) *Forwarder {
	tb.Helper()
	f, err := StartForwarder(network, target)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.Close() })
	return f
}

// Address is where clients connect to, the same for as long as f lives.
func (f *Forwarder) Address() string { return f.address }

// Close ends every connection and returns when nothing of f is left.
func (f *Forwarder) Close() {
	f.mu.Lock()
	f.closed = true
	f.traps = nil
	f.stopListening()
	for _, c := range f.connections {
		c.close()
	}
	f.announce()
	f.mu.Unlock()
	f.workers.Wait()
}

// listen opens the listener and accepts; f.mu is held.
func (f *Forwarder) listen() error {
	listener, err := net.Listen("tcp", f.address)
	if err != nil {
		return fmt.Errorf("forward to %s: %w", f.target, err)
	}
	f.listener, f.address = listener, listener.Addr().String()
	f.workers.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			f.accept(client.(*net.TCPConn))
		}
	})
	return nil
}

// stopListening closes the listener, if there is one; f.mu is held.
func (f *Forwarder) stopListening() {
	if f.listener != nil {
		f.listener.Close()
		f.listener = nil
	}
}

// accept takes a new client in.
func (f *Forwarder) accept(client *net.TCPConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		client.Close()
		return
	}
	f.accepted++
	f.announce()
	if f.resetEvery > 0 && f.accepted%f.resetEvery == 0 {
		reset(client)
		return
	}
	c := &Connection{f: f, ID: f.accepted, client: client}
	if f.mode == Blackhole {
		c.holed, c.swallow, c.lossy = true, true, true
	}
	f.connections = append(f.connections, c)
	f.workers.Go(c.serve)
}

// announce wakes everyone who waits for something; f.mu is held.
func (f *Forwarder) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// await returns once true is what condition says, which is called with f.mu
// held.
func (f *Forwarder) await(ctx context.Context, condition func() bool) error {
	for {
		f.mu.Lock()
		met, closed, changed := condition(), f.closed, f.changed
		f.mu.Unlock()
		switch {
		case met:
			return nil
		case closed:
			return errClosed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// expect is await for tests, which shall fail rather than hang.
func (f *Forwarder) expect(ctx context.Context, condition func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return f.await(ctx, condition)
}

// SetMode switches all connections, present and future. It fails when Refuse is
// left and the port was taken by somebody else meanwhile.
func (f *Forwarder) SetMode(mode Mode) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errClosed
	}
	f.mode = mode
	for _, c := range f.connections {
		// One that has lost something cannot be mended.
		c.holed = mode == Blackhole
		c.swallow = c.holed || c.lossy
	}
	f.announce()
	if mode == Refuse {
		f.stopListening()
		return nil
	}
	if f.listener == nil {
		return f.listen()
	}
	return nil
}

// SetDelay holds every packet up for so long, in each direction. Zero is none.
func (f *Forwarder) SetDelay(toServer, toClient time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.toServer, f.toClient = toServer, toClient
}

// ResetEvery has every nth new connection reset before it is answered; 0 ends
// that. It counts all connections that were ever accepted.
func (f *Forwarder) ResetEvery(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resetEvery = n
}

// Reset resets every open connection, on both sides.
func (f *Forwarder) Reset() {
	for _, c := range f.Open() {
		c.Reset()
	}
}

// Open returns the connections whose client has not gone, oldest first.
func (f *Forwarder) Open() []*Connection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open()
}

func (f *Forwarder) open() []*Connection {
	return slices.DeleteFunc(slices.Clone(f.connections), func(c *Connection) bool { return c.clientGone })
}

// AwaitOpen returns once exactly n clients are connected.
func (f *Forwarder) AwaitOpen(ctx context.Context, n int) error {
	if err := f.expect(ctx, func() bool { return len(f.open()) == n }); err != nil {
		return fmt.Errorf("%d clients are connected, not %d: %w", len(f.Open()), n, err)
	}
	return nil
}

// Accepted is how many connections were ever accepted.
func (f *Forwarder) Accepted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accepted
}

// AwaitAccepted returns once at least n connections were ever accepted.
func (f *Forwarder) AwaitAccepted(ctx context.Context, n int) error {
	if err := f.expect(ctx, func() bool { return f.accepted >= n }); err != nil {
		return fmt.Errorf("%d connections were made, not %d: %w", f.Accepted(), n, err)
	}
	return nil
}

// Commands is how many commands clients have sent after their login, each one
// a round trip. A goodbye is no command.
func (f *Forwarder) Commands() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commands
}

// Statements returns the statements that came in since the last Forget, oldest
// first, of those that match.
func (f *Forwarder) Statements(match Match) []Statement {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []Statement
	for _, s := range f.statements {
		if match(s.SQL) {
			found = append(found, *s)
		}
	}
	return found
}

// Count is the number of statements that came in since the last Forget and
// match.
func (f *Forwarder) Count(match Match) int { return len(f.Statements(match)) }

// Forget empties the log of statements and sets Commands back to 0.
func (f *Forwarder) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statements, f.commands = nil, 0
}

// AwaitDelivered returns once at least n matching statements since the last
// Forget were given to the server.
func (f *Forwarder) AwaitDelivered(ctx context.Context, match Match, n int) error {
	return f.awaitStatements(ctx, "delivered", n, func(s *Statement) bool { return s.Delivered && match(s.SQL) })
}

// AwaitAnswered returns once the server has answered at least n matching
// statements since the last Forget.
func (f *Forwarder) AwaitAnswered(ctx context.Context, match Match, n int) error {
	return f.awaitStatements(ctx, "answered", n, func(s *Statement) bool { return s.Answered && match(s.SQL) })
}

func (f *Forwarder) awaitStatements(ctx context.Context, what string, n int, match func(*Statement) bool) error {
	found := 0
	err := f.expect(ctx, func() bool {
		found = 0
		for _, s := range f.statements {
			if match(s) {
				found++
			}
		}
		return found >= n
	})
	if err != nil {
		return fmt.Errorf("%d matching statements were %s, not %d: %w", found, what, n, err)
	}
	return nil
}

// fate is what a trap does to its statement.
type fate int

const (
	holdBack fate = iota
	dropReply
	cutReply
	cutRequest
)

// Trap waits for one statement and does one thing to it.
type Trap struct {
	f         *Forwarder
	match     Match
	left      int // how many matching statements still pass before it snaps
	fate      fate
	statement *Statement // nil until it has snapped
	deliver   bool
}

// HoldBack keeps the nth matching statement from now on (the next one is 1)
// from the server until Deliver is called, like a packet that is late. It is
// delivered even when its client has gone meanwhile.
func (f *Forwarder) HoldBack(match Match, nth int) *Trap { return f.arm(match, nth, holdBack) }

// DropReply delivers the nth matching statement and swallows the answer, and
// whatever else the server says on that connection. The client hears nothing.
func (f *Forwarder) DropReply(match Match, nth int) *Trap { return f.arm(match, nth, dropReply) }

// CutReply delivers the nth matching statement, waits for the answer, swallows
// it and resets the client's connection.
func (f *Forwarder) CutReply(match Match, nth int) *Trap { return f.arm(match, nth, cutReply) }

// CutRequest does not deliver the nth matching statement but resets the
// client's connection.
func (f *Forwarder) CutRequest(match Match, nth int) *Trap { return f.arm(match, nth, cutRequest) }

func (f *Forwarder) arm(match Match, nth int, fate fate) *Trap {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &Trap{f: f, match: match, left: nth, fate: fate}
	f.traps = append(f.traps, t)
	return t
}

// Caught returns once the statement has come in.
func (t *Trap) Caught(ctx context.Context) error {
	if err := t.f.expect(ctx, func() bool { return t.statement != nil }); err != nil {
		return fmt.Errorf("no such statement has come: %w", err)
	}
	return nil
}

// Deliver gives a statement that was held back to the server. It does not wait.
func (t *Trap) Deliver() {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.deliver = true
	t.f.announce()
}

// Answered returns what the server has said to the statement, once it has.
func (t *Trap) Answered(ctx context.Context) (Answer, error) {
	if err := t.f.expect(ctx, func() bool { return t.statement != nil && t.statement.Answered }); err != nil {
		return Answer{}, fmt.Errorf("the statement was not answered: %w", err)
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	return t.statement.Answer, nil
}

// Connection is one client's connection.
type Connection struct {
	f  *Forwarder
	ID int // counted from 1

	client *net.TCPConn

	// These are guarded by f.mu.
	server     net.Conn   // nil while not connected
	holed      bool       // neither side learns that the other has gone
	swallow    bool       // everything is lost, in both directions
	lossy      bool       // something was lost
	mute       bool       // the client hears nothing more
	raw        bool       // TLS: packets cannot be seen
	clientGone bool       // the client has closed, or was cut off
	pending    *Statement // the last statement, until the server answers it
	trap       *Trap      // what caught the last statement
	sent       bool       // the server is given, or has, the pending statement
}

// Blackhole swallows everything on this connection from now on. It stays dead;
// only after the next SetMode does one side learn that the other has gone.
func (c *Connection) Blackhole() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.holed, c.swallow, c.lossy = true, true, true
}

// Reset resets this connection, on both sides.
func (c *Connection) Reset() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	reset(c.client)
	if c.server != nil {
		reset(c.server)
	}
}

// reset closes a connection so that its peer gets a reset instead of an end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		// It fails only when the connection is closed already.
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}

// close ends both sides; f.mu is held.
func (c *Connection) close() {
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
}

// serve runs the connection to its end.
func (c *Connection) serve() {
	defer c.forget()
	server, err := c.connect()
	if err != nil {
		reset(c.client)
		return
	}
	requests := make(chan packet, readAhead)
	var others sync.WaitGroup
	others.Go(func() { c.readRequests(requests) })
	if server != nil {
		others.Go(func() { c.copyAnswers(bufio.NewReader(server)) })
	}
	c.copyRequests(requests, server)
	c.linger()
	if server != nil {
		server.Close()
	}
	others.Wait()
}

// forget takes the connection off the list.
func (c *Connection) forget() {
	c.client.Close()
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.f.connections = slices.DeleteFunc(c.f.connections, func(other *Connection) bool { return other == c })
	c.f.announce()
}

// connect dials the server, or returns nil when the client came in a black
// hole.
func (c *Connection) connect() (net.Conn, error) {
	c.f.mu.Lock()
	swallow := c.swallow
	c.f.mu.Unlock()
	if swallow {
		return nil, nil
	}
	server, err := net.Dial(c.f.network, c.f.target)
	if err != nil {
		return nil, err
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.f.closed {
		server.Close()
		return nil, errClosed
	}
	c.server = server
	return server, nil
}

// linger keeps the server's side of a connection whose client has gone for as
// long as the server must not notice: in a black hole, and while it has a
// statement to answer that a trap has caught.
func (c *Connection) linger() {
	// It ends with the forwarder at the latest.
	_ = c.f.await(context.Background(), func() bool {
		owed := c.trap != nil && c.pending != nil && c.sent
		return !c.holed && !owed
	})
}

// readAhead is how much of a client is read while a statement is held back, so
// that its goodbye and its end are noticed. Clients wait for answers, so more
// than a few packets never come.
const readAhead = 16

// readRequests reads what the client says until it is gone.
func (c *Connection) readRequests(requests chan<- packet) {
	defer func() {
		c.f.mu.Lock()
		defer c.f.mu.Unlock()
		c.clientGone = true
		c.f.announce()
		close(requests)
	}()
	client := bufio.NewReader(c.client)
	for first := true; ; first = false {
		data, err := c.read(client)
		if err != nil {
			return
		}
		if first && len(data.payload()) == tlsRequestBytes {
			c.f.mu.Lock()
			c.raw = true // from the next byte on, in both directions
			c.f.mu.Unlock()
		}
		requests <- data
	}
}

// copyRequests passes on what the client says, until the last that it said.
func (c *Connection) copyRequests(requests <-chan packet, server net.Conn) {
	for data := range requests {
		pass, cut := c.judgeRequest(data)
		if cut {
			reset(c.client)
		}
		if !pass || server == nil {
			continue
		}
		// An error ends the other direction, which closes the client.
		_, _ = server.Write(data)
		c.delivered()
	}
}

// read reads one packet, or what there is once packets cannot be seen.
func (c *Connection) read(r *bufio.Reader) (packet, error) {
	if _, err := r.Peek(1); err != nil {
		return nil, err
	}
	c.f.mu.Lock()
	raw := c.raw
	c.f.mu.Unlock()
	if !raw {
		return readPacket(r)
	}
	data := make(packet, r.Buffered())
	_, err := r.Read(data)
	return data, err
}

// judgeRequest logs a request, waits as long as it is to be held up, and says
// whether it goes on to the server, or whether its client is to be cut off.
func (c *Connection) judgeRequest(data packet) (pass, cut bool) {
	f := c.f
	f.mu.Lock()
	delay := f.toServer
	var trap *Trap
	if !c.raw {
		trap = c.log(data)
	}
	f.mu.Unlock()

	f.pause(delay)
	if trap != nil {
		switch trap.fate {
		case cutRequest:
			return false, true
		case holdBack:
			if err := f.await(context.Background(), func() bool { return trap.deliver }); err != nil {
				return false, false
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if trap != nil && trap.fate != holdBack {
		c.mute = true
	}
	if c.swallow {
		c.lossy = true
		return false, false
	}
	c.sent = true // before the write, because the answer can be quicker than us
	return true, false
}

// log writes a command down and returns the trap that it steps into, or nil;
// f.mu is held.
func (c *Connection) log(data packet) *Trap {
	f := c.f
	command, ok := data.command()
	if !ok || command == commandQuit {
		return nil
	}
	f.commands++
	c.pending, c.trap, c.sent = nil, nil, false
	defer f.announce()
	if command != commandQuery && command != commandPrepare {
		return nil
	}
	s := &Statement{Connection: c.ID, SQL: string(data.payload()[1:])}
	f.statements = append(f.statements, s)
	c.pending = s
	for i, t := range f.traps {
		if !t.match(s.SQL) {
			continue
		}
		if t.left--; t.left > 0 {
			continue
		}
		f.traps = slices.Delete(f.traps, i, i+1)
		t.statement, c.trap = s, t
		return t
	}
	return nil
}

// pause waits for d, or for the forwarder's end.
func (f *Forwarder) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_ = f.await(ctx, func() bool { return false })
}

// delivered notes that the server was given the last command.
func (c *Connection) delivered() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.pending != nil {
		c.pending.Delivered = true
		c.f.announce()
	}
}

// copyAnswers passes on what the server says, until it is gone.
func (c *Connection) copyAnswers(server *bufio.Reader) {
	for {
		data, err := c.read(server)
		if err != nil {
			c.serverGone()
			return
		}
		pass, cut := c.judgeAnswer(data)
		if cut {
			reset(c.client)
		}
		if pass {
			// An error means that the client has gone, which is no reason to
			// stop listening to the server.
			_, _ = c.client.Write(data)
		}
	}
}

// judgeAnswer notes an answer and says whether the client hears it, or whether
// it is to be cut off.
func (c *Connection) judgeAnswer(data packet) (pass, cut bool) {
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !c.raw && data.sequence() == 1 && c.pending != nil && c.sent {
		c.pending.Delivered, c.pending.Answered, c.pending.Answer = true, true, parseAnswer(data)
		cut = c.trap != nil && c.trap.fate == cutReply
		c.pending = nil
		f.announce()
	}
	delay := f.toClient
	f.mu.Unlock()
	f.pause(delay)
	f.mu.Lock()
	if c.swallow {
		c.lossy = true
	}
	return !c.swallow && !c.mute, cut
}

// serverGone tells the client that the server has ended the connection, unless
// a black hole keeps that from it.
func (c *Connection) serverGone() {
	c.f.mu.Lock()
	c.pending = nil // nobody will answer it
	c.f.announce()
	c.f.mu.Unlock()
	// It ends with the forwarder at the latest.
	_ = c.f.await(context.Background(), func() bool { return c.clientGone || !c.holed })
	c.client.Close()
}
