/* Two frames: the answer is on the screen before the charts begin. */
applyTheme();
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => { loadPlotly(); drawInTurn(); }, 0)));
