/* Two frames: the answer is on the screen before the charts begin. */
applyTheme();
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => { performance.mark("charts-begin"); loadPlotly(); drawInTurn(); }, 0)));
