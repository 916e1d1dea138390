//! In which order what is measured.

/// One measurement: an arm on a rung, in one of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// From 0.
    pub round: u32,
    pub sessions: u32,
    /// The arm's place among the arms.
    pub arm: usize,
}

/// Every arm on every rung in every round. The arms follow upon each other directly, so that what else the machine does hits
/// them alike, and in every other round in the reverse order (ABBA), so that none is always the first.
pub fn cells(sessions: &[u32], arms: usize, rounds: u32) -> Vec<Cell> {
    let mut cells = Vec::new();
    for round in 0..rounds {
        for sessions in sessions {
            let order: Vec<usize> = if round % 2 == 0 { (0..arms).collect() } else { (0..arms).rev().collect() };
            cells.extend(order.into_iter().map(|arm| Cell { round, sessions: *sessions, arm }));
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_alternate_and_change_their_order_in_every_round() {
        let order: Vec<_> = cells(&[4, 8], 2, 2).iter().map(|cell| (cell.round, cell.sessions, cell.arm)).collect();
        let expected = [(0, 4, 0), (0, 4, 1), (0, 8, 0), (0, 8, 1), (1, 4, 1), (1, 4, 0), (1, 8, 1), (1, 8, 0)];
        assert_eq!(order, expected);
    }
}
